"""Every setting of weft, declared once: its type, its default, what it does, and the WEFT_* variable that sets it.

Read one as `knobs.device`, change it with `knobs.device = "null"`, for all threads, or with `with knobs.set(device="null"): ...` for the
code in the block alone: other threads do not see it. Values are checked when they are set, wherever they come from. docs/settings.md
lists them; a test fails on one that is not listed.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from types import MappingProxyType
from typing import Any

from .errors import UserError
from .records import dataclass


@dataclass(frozen=True)
class Knob:
    """One setting: how to read it from text, its default, and what it is for."""

    parse: Callable[[str], Any]
    default: Any
    help: str
    choices: set[str] = field(default_factory=set)  # filled when devices register; empty while the program starts

    def read(self, name: str, text: str) -> Any:
        try:
            if self.choices and text.partition(":")[0] not in self.choices:  # what stands after a colon is a number
                raise ValueError(f"it must be one of {', '.join(sorted(self.choices))}")
            return self.parse(text)
        except ValueError as error:
            raise UserError("knobs", f"WEFT_{name.upper()} cannot be {text!r}: {error}. {self.help}") from None


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("it must be 1 or more")
    return number


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("it must be 0 or more")
    return number


def _switch(text: str) -> int:
    if text not in ("0", "1"):
        raise ValueError("it must be 0 or 1")
    return int(text)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError("it must be a number of seconds above 0")
    return number


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def memory_size(text: str) -> int:
    """A number of bytes: 40GiB, 1.5GB, 800MiB, 1000000; 0 stands for no limit."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(|[KMG]i?B)", text.strip())
    if found is None or (not found[2] and "." in found[1]):
        raise ValueError("it must be a number of bytes such as 40GiB, 800MiB or 1000000, or 0 for no limit")
    size = int(float(found[1]) * _UNITS[found[2]]) if found[2] else int(found[1])
    if not size and float(found[1]):
        raise ValueError("it must be a byte or more, or 0 for no limit")
    return size


def _engine(text: str) -> str:
    if text not in ("auto", "local", "mpi"):
        raise ValueError("it must be auto, local or mpi")
    return text


# Every algorithm of a convolution. The compiler knows them; the list stands here so that a setting is checked when it is set.
ALGORITHMS = (
    "GEMM",
    "IMPLICIT_GEMM",
    "IMPLICIT_PRECOMP_GEMM",
    "DIRECT",
    "WINOGRAD",
    "WINOGRAD_2X2",
    "FFT",
    "FFT_TILED",
    "LOOPS",
)
# Those that GPUs have.
GPU_ALGORITHMS = ("IMPLICIT_GEMM", "DEPTHWISE", "CUDNN", "GEMM", "FFT", "FFT_TILED", "DIRECT", "LOOPS")
PRODUCT_ALGORITHMS = ("TRITON", "CUBLASLT", "TILED", "NAIVE")  # of a matrix product on GPUs


def preference(text: str) -> str:
    """A preference among algorithms of a convolution in its one form: fastest, no_workspace, workspace:BYTES, or a name."""
    return _preference(text, tuple(dict.fromkeys((*ALGORITHMS, *GPU_ALGORITHMS))))


def product_preference(text: str) -> str:
    """The same of a matrix product."""
    return _preference(text, PRODUCT_ALGORITHMS)


def _preference(text: str, names: tuple[str, ...]) -> str:
    kind, _, size = text.partition(":")
    if kind == "workspace" and size.isdecimal():
        return f"workspace:{int(size)}"
    if text in ("fastest", "no_workspace", *names):
        return text
    raise ValueError(f"it must be fastest, no_workspace, workspace:BYTES, or one of {', '.join(names)}")


KNOBS: dict[str, Knob] = {
    "device": Knob(
        str, "cpu", "The device new tensors live on: cpu, cuda (or cuda:1, ...), tpu (simulated), reference, null."
    ),
    "seed": Knob(_natural, 0, "The seed of the global random generator when the program starts."),
    "pending_nodes": Knob(
        _count, 250_000, "Pending work older than this many new nodes is computed, so that loops stay bounded."
    ),
    "pending_bytes": Knob(
        _count, 1 << 30, "Pending work older than this many bytes of new data is computed, likewise."
    ),
    "threads": Knob(
        _natural, 0, "How many threads compiled programs run on; 0: as many as cores this process may use."
    ),
    "compile_after": Knob(
        _count,
        3,
        "A computation is compiled once its structure has occurred this many times; before, it is interpreted.",
    ),
    "conv_algorithm": Knob(
        preference,
        "fastest",
        "Algorithm of convolutions made without a preference: fastest, no_workspace, workspace:BYTES, or an "
        "algorithm by name.",
    ),
    "matmul_algorithm": Knob(
        product_preference,
        "fastest",
        "Algorithm of matrix products on GPUs: fastest, no_workspace, workspace:BYTES, or an algorithm by name.",
    ),
    "winograd": Knob(_switch, 1, "0 forbids the algorithms WINOGRAD and WINOGRAD_2X2, whose errors are larger."),
    "fast_math": Knob(
        _switch,
        0,
        "1 allows compiled code to reorder arithmetic where that can change which values overflow or are not a number.",
    ),
    "optimize": Knob(
        _switch,
        1,
        "0 compiles programs for CPUs, and the library functions they call, without LLVM's optimizations: three to ten times faster to compile, several times slower to run.",
    ),
    "tf32": Knob(
        _switch,
        0,
        "1 allows GPUs to round the operands of float32 products and convolutions to 19 bits (TF32), which is much faster.",
    ),
    "memory": Knob(
        memory_size,
        0,
        "Memory that a compiled program may take, such as 40GiB: values that do not fit are computed again. 0: no limit.",
    ),
    "cache": Knob(
        str, "", "The folder for compiled code. Empty: weft in the user's cache folder. 'off': none is kept."
    ),
    "cache_bytes": Knob(_natural, 1 << 30, "Limit of the compile cache on disk, in bytes."),
    "data": Knob(str, "", "The folder for data sets, downloaded or made. Empty: weft in the user's folder for data."),
    "machines": Knob(str, "", "A YAML file of described machines, added to those that weft knows. Empty: none."),
    "engine": Knob(
        _engine,
        "auto",
        "What connects the processes of a mesh: local (shared memory of one machine), mpi, or auto: local where it can be.",
    ),
    "machine_ranks": Knob(
        _natural,
        0,
        "Consecutive processes that MPI connects and that share memory: all-reduces are hierarchical. 0: those that are on one machine.",
    ),
    "stall_seconds": Knob(
        _seconds, 20.0, "A process of a mesh that has not answered for this many seconds ends the others."
    ),
    "debug": Knob(
        _natural,
        0,
        "1 prints a line for each evaluation and compilation, 2 also kernels with times, 3 the schedule and the memory, "
        "4 the generated LLVM IR, 5 the assembly.",
    ),
}


class Knobs:
    """The settings in force: defaults, then the environment, then `set`."""

    device: str
    seed: int
    pending_nodes: int
    pending_bytes: int
    threads: int
    compile_after: int
    conv_algorithm: str
    matmul_algorithm: str
    winograd: int
    fast_math: int
    optimize: int
    tf32: int
    memory: int
    cache: str
    cache_bytes: int
    data: str
    machines: str
    engine: str
    machine_ranks: int
    stall_seconds: float
    debug: int
    changes: Any  # equal as long as no setting has changed in this context: for callers that cache what follows from settings

    _shared: dict[str, Any]  # the settings outside of all blocks
    _block: ContextVar[Mapping[str, Any]]  # those that the blocks around this code override
    _overridden: Counter[str]  # in how many blocks each setting is
    _lock: threading.Lock
    _count: int  # of changes

    # Settings are read all the time, and an instance attribute is read without any Python code in between. So a setting is one, unless
    # some `with` block in some thread overrides it: then there is no such attribute, and __getattr__ of `_KnobsInBlocks` answers.

    def __init__(self) -> None:
        self._own("_shared", {})
        self._own("_block", ContextVar[Mapping[str, Any]]("settings of the with block", default=MappingProxyType({})))
        self._own("_overridden", Counter[str]())
        self._own("_lock", threading.Lock())
        self._own("_count", 0)
        for name, knob in KNOBS.items():
            setattr(self, name, os.environ.get(f"WEFT_{name.upper()}", knob.default))

    def __setattr__(self, name: str, value: Any) -> None:
        checked, block = _checked({name: value}), self._block.get()
        if name in block:
            self._block.set({**block, **checked})
        else:
            self._shared.update(checked)
        self._changed()

    @contextmanager
    def set(self, **values: Any) -> Iterator[None]:
        """Change settings inside a `with` block, for the code that runs in it: other threads keep theirs.

        A thread that is started in the block begins with the settings outside of it, unless it runs in a copy of the context:
        `threading.Thread(target=contextvars.copy_context().run, args=(function,))`.
        """
        checked = _checked(values)
        before = self._block.set({**self._block.get(), **checked})
        self._changed(entered=list(checked))
        try:
            yield
        finally:
            self._block.reset(before)
            self._changed(left=list(checked))

    def _changed(self, entered: Iterable[str] = (), left: Iterable[str] = ()) -> None:
        """Settings have changed, or blocks that override some were entered or left."""
        with self._lock:
            self._overridden.update(entered)
            self._overridden.subtract(left)
            self._own("_count", self._count + 1)
            overridden = +self._overridden
            if overridden:
                object.__setattr__(self, "__class__", _KnobsInBlocks)  # before an attribute is missing
            for name, value in {**self._shared, "changes": self._count}.items():
                if name in overridden or (name == "changes" and overridden):
                    self.__dict__.pop(name, None)
                else:
                    self._own(name, value)
            if not overridden:
                object.__setattr__(self, "__class__", Knobs)

    def _own(self, name: str, value: Any) -> None:
        self.__dict__[name] = value


class _KnobsInBlocks(Knobs):
    """The settings while a `with` block overrides some."""

    def __getattr__(self, name: str) -> Any:
        block: Mapping[str, Any] = self._block.get()
        if name == "changes":
            return self._count, id(block)
        if name not in KNOBS:
            raise AttributeError(name)
        return block[name] if name in block else self._shared[name]


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    unknown = next((name for name in values if name not in KNOBS), None)
    if unknown is not None:
        raise UserError("knobs", f"there is no setting {unknown!r}. The settings are {', '.join(KNOBS)}.")
    return {name: KNOBS[name].read(name, str(value)) for name, value in values.items()}


knobs = Knobs()
