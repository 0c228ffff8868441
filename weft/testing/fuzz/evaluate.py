"""Runs a program: on any device, eager or compiled, in its own dtypes or in float64, with or without noise."""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import random
from ...dtypes import as_dtype, finfo
from ...jit import jit
from ...knobs import knobs
from ...nn.module import Module
from ...ops.convert import asarray
from ...tensor import Tensor
from ...tree import flatten
from .program import CALLS, DRAW, HEADER, Input, Program, module_seed, optimizer_lines

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


def unit(dtype: str) -> float:
    """The distance from 1 to the next larger number of a float dtype."""
    return finfo(dtype).eps


class Noise:
    """Rounding errors at random: inputs and results of each statement are multiplied by 1 + u, with u as large as rounding could make it.

    Derivatives pass through the same products, so errors of the backward half are covered, too.
    """

    ULPS = 2.0  # that an elementwise function may be off

    def __init__(self, sample: int, precision: str) -> None:
        self.sample, self.precision = sample, precision

    def __call__(self, f: Callable[..., Any], key: str, dtype: str, rounding: str, *inputs: Any) -> Any:
        sizes = [i.size for i in inputs if isinstance(i, Tensor)]
        most = max(sizes, default=1)
        given = [
            self._moved(x, f"{key}<{i}", dtype, _growth(rounding, most, x.size)) if isinstance(x, Tensor) else x
            for i, x in enumerate(inputs)
        ]
        return self._result(f(*given), key, dtype, 1.0 if rounding == "elementwise" else _growth("blocks", most, most))

    def on_input(self, array: np.ndarray, key: str, dtype: str) -> np.ndarray:
        return array * (1.0 + 0.5 * unit(dtype) * self._draw(key).uniform(-1.0, 1.0, array.shape))

    def _result(self, value: Any, key: str, dtype: str, growth: float) -> Any:
        if isinstance(value, Tensor):
            return self._moved(value, key, dtype, growth)
        return tuple(self._result(v, f"{key}.{i}", dtype, growth) for i, v in enumerate(value))

    def _moved(self, x: Tensor, key: str, dtype: str, growth: float) -> Tensor:
        if not x.dtype.is_float or not growth:
            return x
        size = self.ULPS * growth * unit(self.precision or dtype)
        return x * asarray(1.0 + size * self._draw(key).uniform(-1.0, 1.0, x.shape))

    def _draw(self, key: str) -> np.random.Generator:
        return np.random.default_rng([self.sample, zlib.crc32(key.encode())])


def _growth(rounding: str, most: int, size: int) -> float:
    """By how much the errors of a statement are larger than those of one operation; 0: an input is not touched."""
    if rounding == "chain":
        return math.sqrt(most)
    if rounding == "blocks":
        return 1.0 + math.log2(most + 1)
    # An elementwise statement sums only in its derivative by an input that is broadcast.
    return math.log2(most / size) if 0 < size < most else 0.0


def evaluate(program: Program, mode: Mode, noise: Noise | None = None) -> list[Results]:
    """What every call returned and left behind."""
    with knobs.set(device=mode.device, **dict(mode.knobs)):
        return Run(program, mode, noise).results()


class Run:
    """One run of a program: its names, and its calls."""

    def __init__(self, program: Program, mode: Mode, noise: Noise | None) -> None:
        self.program, self.mode, self.noise = program, mode, noise
        narrow = {"D": as_dtype(program.dtype), "H": as_dtype(program.other)}
        self.names: dict[str, Any] = {"W": as_dtype(program.dtype), "noise": noise}
        exec(HEADER + DRAW.format(seed=program.seed), self.names)
        self.names |= {n: as_dtype("float64") if mode.wide else d for n, d in narrow.items()}
        for given in program.of_role("captured", "state", "module"):
            self.names[given.name] = self.value(given, 0)
        for line in optimizer_lines(program):
            exec(line, self.names)
        random.seed(program.seed)
        exec(program.text(noisy=noise is not None), self.names)
        step = self.names["step"]
        self.function = jit(step, precision=program.precision or None) if mode.jit else step

    def results(self) -> list[Results]:
        if self.mode.at_once > 1:
            return self._at_once()
        return [self._call(call, self._arguments(call)) for call in range(CALLS)]

    def _call(self, call: int, arguments: list[Any]) -> Results:
        if self.mode.changes and self.program.settings:
            name, value = self.program.settings[call % len(self.program.settings)]
            setattr(knobs, name, value)
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

        threads = [threading.Thread(target=call, args=(n,)) for n in range(CALLS)]
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
        if dtype.is_float and self.noise is not None:
            values = self.noise.on_input(values, f"{given.name}@{call}", dtype.name)
        return asarray(values)

    def _module(self, given: Input) -> Module:
        random.seed(module_seed(given))
        made: Module = eval(given.code, self.names).astype(self.names["W"]).astype(self.names["D"])
        if self.noise is not None:
            values = {n: array(t) for n, t in made.named_tensors().items()}
            dtype = self.program.dtype
            made.load(
                {
                    n: self.noise.on_input(v, f"{given.name}.{n}", dtype)
                    for n, v in values.items()
                    if v.dtype.kind == "f"
                },
                strict=False,
            )
        return made


def array(value: Any) -> np.ndarray:
    """A result as an array of its own."""
    return np.array(value.numpy() if isinstance(value, Tensor) else value)
