"""Runs a program: on any device, eager or compiled, in its own dtypes or in float64, with or without noise."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import numpy as np

from ... import random
from ...compiler.thresholds import thresholds
from ...dtypes import as_dtype, finfo
from ...knobs import knobs
from ...nn.module import Module
from ...ops.convert import asarray
from ...records import dataclass
from ...tensor import Tensor
from ...tracing.jit import jit
from ...tree import flatten
from .noise import moved, noise
from .program import CALLS, DRAW, HEADER, FuzzProgram, Input, module_seed, optimizer_lines

Results = dict[str, np.ndarray]  # what a call returned and left behind, by name


@dataclass(frozen=True)
class Mode:
    """A way to run a program."""

    name: str
    device: str
    jit: bool = False
    wide: bool = False  # in float64, whatever the program's dtypes
    knobs: tuple[tuple[str, Any], ...] = ()
    changes: bool = False  # the program's settings are changed between calls
    at_once: int = 1  # threads that call the function at the same time
    same_bits_as: str = ""  # the mode whose results it must repeat to the bit
    spread: bool = False  # over all threads, however small the program


def unit(program: FuzzProgram) -> float:
    """The distance from 1 to the next larger number of the coarsest dtype that a program computes in."""
    return max(finfo(dtype).eps for dtype in program.dtypes())


def evaluate(program: FuzzProgram, mode: Mode, sample: int | None = None) -> list[Results]:
    """What every call returned and left behind. With a sample number, rounding errors are put in at random."""
    with ExitStack() as stack:
        stack.enter_context(knobs.set(device=mode.device, **dict(mode.knobs)))
        if sample is not None:
            stack.enter_context(noise(sample, unit(program)))
        if mode.spread:
            stack.enter_context(thresholds.set(threaded_work=0))
        return Run(program, mode, sample).results()


class Run:
    """One run of a program: its names, and its calls."""

    def __init__(self, program: FuzzProgram, mode: Mode, sample: int | None = None) -> None:
        self.program, self.mode, self.sample = program, mode, sample
        self.names: dict[str, Any] = {"W": as_dtype(program.dtype)}
        exec(HEADER + DRAW.format(seed=program.seed), self.names)
        narrow = {"D": as_dtype(program.dtype), "H": as_dtype(program.other)}
        self.names |= {n: as_dtype("float64") if mode.wide else d for n, d in narrow.items()}
        for given in program.of_role("captured", "state", "module"):
            self.names[given.name] = self.value(given, 0)
        for line in optimizer_lines(program):
            exec(line, self.names)
        random.seed(program.seed)
        exec(program.text(), self.names)
        step = self.names["step"]
        self.function = jit(step, precision=program.precision or None) if mode.jit else step

    def results(self) -> list[Results]:
        if self.mode.at_once > 1:
            return self._at_once()
        return [self._call(call, self._arguments(call)) for call in range(CALLS)]

    def _call(self, call: int, arguments: list[Any]) -> Results:
        settings = self.program.settings if self.mode.changes else ()
        with knobs.set(**dict(settings[call % len(settings) :][:1] if settings else ())):
            returned = self.function(*arguments)
        found = {f"result {i}": array(r) for i, r in enumerate(flatten(returned)[0])}
        # Arguments may be changed in place, and what was captured must not be.
        for given, value in zip(self.program.arguments, arguments, strict=True):
            if isinstance(value, Tensor):
                found[given.name] = array(value)
        for given in self.program.of_role("captured", "state"):
            found[given.name] = array(self.names[given.name])
        modules = self.names.get("modules")
        if isinstance(modules, Module):
            found |= {n: array(t) for n, t in modules.named_tensors().items()}
        return found

    def _at_once(self) -> list[Results]:
        """Every call in a thread of its own; an error of one is the error of all."""
        found: list[Results] = [{} for _ in range(CALLS)]
        errors: list[BaseException] = []
        arguments = [self._arguments(call) for call in range(CALLS)]
        start = threading.Barrier(CALLS)

        def call(number: int) -> None:
            try:
                start.wait()
                for _ in range(self.mode.at_once):
                    found[number] = self._call(number, arguments[number])
            except BaseException as error:
                errors.append(error)

        # With the settings of the mode: those of a `with` block hold in threads that are started with its context.
        threads = [threading.Thread(target=copy_context().run, args=(call, n)) for n in range(CALLS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return found

    def _arguments(self, call: int) -> list[Any]:
        return [self.value(i, call % (CALLS - 1)) for i in self.program.arguments]

    def value(self, given: Input, call: int) -> Any:
        """The value of an input: the same numbers in float64, unless there is noise."""
        if given.role == "module":
            return self._module(given)
        self.names["rng"] = self.names["draw"](given.name, call)
        made = eval(given.code, self.names)
        if given.dtype == "python":
            return made
        dtype = as_dtype(given.dtype or self.program.dtype)
        with np.errstate(all="ignore"):
            values = np.asarray(made).astype(dtype.numpy)
        if dtype.is_float and self.mode.wide:
            values = values.astype(np.float64)
        if dtype.is_float and self.sample is not None:
            values = moved(values, unit(self.program), [self.sample, call, *given.name.encode()])
        return asarray(values)

    def _module(self, given: Input) -> Module:
        random.seed(module_seed(given))
        made: Module = eval(given.code, self.names).astype(self.names["W"]).astype(self.names["D"])
        return made


def array(value: Any) -> np.ndarray:
    """A result as an array of its own; a Python number that is returned as it came is the tensor that jit makes of it."""
    return np.array((value if isinstance(value, Tensor) else asarray(value)).numpy())
