"""Collectives on NumPy arrays, by the native functions that compiled programs call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from ..compiler import cpu as compiler
from ..compiler.cpu.collective.layout import FAILED, TABLE
from ..compiler.ir.plan import PlanPhase


def linked_symbol(symbol: str, engine: str) -> str:
    """The symbol to link for a function that a program calls: compiled programs do not depend on the engine."""
    return symbol.replace("collective.", "mpi.", 1) if engine == "mpi" and symbol.startswith("collective.") else symbol


def run_phase(phase: PlanPhase, x: np.ndarray, y: np.ndarray, engine: str, table: int) -> int | None:
    """Run a collective on one thread. Returns None, or if it was aborted the index of a peer that is in a different one, or -1."""
    call, status = prepared_call(phase, x, y, engine, table)
    call()
    return int(status[1]) if status[0] == FAILED else None


def prepared_call(
    phase: PlanPhase, x: np.ndarray, y: np.ndarray, engine: str, table: int
) -> tuple[Callable[[], None], ctypes.Array[ctypes.c_int64]]:
    """A collective on one thread with its arguments converted, for repeated calls, and the status that it writes. Both arrays must outlive it."""
    status = (ctypes.c_int64 * (TABLE + 1))()
    status[TABLE] = table
    pointers = {"x0": x.ctypes.data, "y": y.ctypes.data, "status": ctypes.addressof(status)}
    known = {**pointers, "tid": 0, "threads": 1}
    numbers = tuple(map(compiler.library.is_number, phase.arguments))
    function = native_function(linked_symbol(phase.symbol, engine), numbers)
    values = [a if isinstance(a, int) else known[a] for a in phase.arguments]
    converted = [ctypes.c_int64(v) if is_number else ctypes.c_void_p(v) for v, is_number in zip(values, numbers, strict=True)]  # fmt: skip
    return partial(function, *converted), status


@cache
def native_function(symbol: str, numbers: tuple[bool, ...]) -> Any:
    """A function of the compiler's library, and which of its arguments are numbers, not addresses."""
    address = compiler.library.address(symbol, lambda: compiler.backend.LOWERINGS)
    return ctypes.CFUNCTYPE(None, *(ctypes.c_int64 if n else ctypes.c_void_p for n in numbers))(address)
