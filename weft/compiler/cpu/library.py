"""The library of shape-generic native functions: matrix products, convolutions, sorting. Programs call them by symbol.

Each function is compiled on first use, from its symbol alone. A computation such as a matrix product is a `Plan`: a few phases, each
a call of such a function by all threads, with barriers between phases that depend on each other. Phases are data, so programs can be
cached on disk, and barriers follow from what phases read and write.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from ..host import usable_cores
from ..ir.plan import Plan, PlanPhase
from ..store import is_recording
from ..thresholds import thresholds
from .engine import Loaded, kept_code, object_code
from .target import CpuTarget, current_target

if TYPE_CHECKING:
    from llvmlite import ir  # loading cached code needs no generator

NUMBERS = ("tid", "threads")


def is_number(argument: str | int) -> bool:
    """Whether an argument of a phase is passed as an i64, not as a pointer."""
    return isinstance(argument, int) or argument in NUMBERS or argument.startswith("site")


_makers: dict[str, Callable[[str], ir.Module]] = {}  # generators by family
_Key = tuple[str, bool, str, CpuTarget]  # symbol, optimized, changed thresholds, the CPU that the IR was generated for
_loaded: dict[_Key, Loaded] = {}
_loading: dict[_Key, threading.RLock] = {}


def library(family: str) -> Callable[[Callable[[str], ir.Module]], Callable[[str], ir.Module]]:
    """Register the generator of all functions whose symbols begin with `family` and a dot: symbol -> LLVM module."""

    def enter(maker: Callable[[str], ir.Module]) -> Callable[[str], ir.Module]:
        _makers[family] = maker
        return maker

    return enter


def address(symbol: str, import_generators: Callable[[], object] = lambda: None, *, optimize: bool = True) -> int:
    """The address of a function, compiled now if it is not loaded yet and not cached.

    `import_generators` is called before it is compiled: code that is cached is loaded without its generator.
    """
    key = _key(symbol, optimize)
    if is_recording():
        _code(symbol, optimize, import_generators)
    if key not in _loaded:
        with _loading.setdefault(key, threading.RLock()):  # one thread compiles it, the others wait
            if key not in _loaded:
                _loaded[key] = Loaded(_code(symbol, optimize, import_generators))
    return _loaded[key].address(symbol)


def _key(symbol: str, optimize: bool) -> _Key:
    return symbol, optimize, thresholds.changed(), current_target()


def module_of(symbol: str) -> ir.Module:
    """The LLVM module of a function, for the current target."""
    return _makers[symbol.split(".")[0]](symbol)


def _code(symbol: str, optimize: bool, import_generators: Callable[[], object]) -> bytes:
    family = symbol.split(".")[0]

    def make() -> bytes:
        import_generators()
        return object_code(_makers[family](symbol), optimize)

    if family in _makers and not _makers[family].__module__.startswith(
        "weft."
    ):  # cache keys cover weft's own sources only
        return make()
    return kept_code(f"library {symbol} {'' if optimize else 'not '}optimized", make)


@contextmanager
def preparing(symbols: Iterable[str], optimize: bool = True) -> Iterator[None]:
    """Compile missing functions in the background of the `with` block."""
    missing = [symbol for symbol in dict.fromkeys(symbols) if _key(symbol, optimize) not in _loaded]
    if not missing:
        yield
        return
    from concurrent.futures import ThreadPoolExecutor  # not needed where all is cached

    with ThreadPoolExecutor(min(len(missing), usable_cores())) as pool:
        made = [
            pool.submit(copy_context().run, partial(address, symbol, optimize=optimize)) for symbol in missing
        ]  # with the settings of this thread
        yield
    for one in made:
        one.result()


def run(plan: Plan, pointers: Mapping[str, int], threads: int = 1) -> None:
    """Run a plan on addresses, phase after phase: for tests and measurements. A missing "epilogue" is null."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        for phase in plan.phases:
            kinds = [ctypes.c_int64 if is_number(a) else ctypes.c_void_p for a in phase.arguments]
            function = ctypes.CFUNCTYPE(None, *kinds)(address(phase.symbol))

            def call(tid: int, function: Any = function, phase: PlanPhase = phase) -> None:
                known: dict[str, int] = {"epilogue": 0, "context": 0, **pointers, "tid": tid, "threads": threads}
                function(*(a if isinstance(a, int) else known[a] for a in phase.arguments))

            list(pool.map(call, range(threads)))
