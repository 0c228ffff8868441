"""Phases of matrix products, written by the names of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...ir.plan import PlanPhase
from .packing import PACK
from .split_k import ADDUP

Values = dict[str, int | str]


def named(**values: int | str) -> Values:
    return values


_PLAIN = {"a", "b", "c", "work", "epilogue", "context", "tid", "threads"}  # names that are passed as they are


def phase(symbol: str, names: Sequence[str], values: Values, reads: set[str], writes: set[str]) -> PlanPhase:
    """A call with its arguments in the order of their names; pointers, "tid" and "threads" are passed by name."""
    arguments = tuple(values[name] if name in values or name not in _PLAIN else name for name in names)
    return PlanPhase(symbol, arguments, frozenset(reads), frozenset(writes))


def pack_phase(kind: str, source: str, width: int, values: Values) -> PlanPhase:
    """Panels of `width` lines from values["source"] at the beginning of values["target"]."""
    values = named(target_offset=0, chunk=128) | values
    return phase(f"pack.{kind}.{source}.{width}", PACK, values, {str(values["source"])}, {str(values["target"])})


def addup_phase(kind: str, m: int, n: int, ldc: int, parts: int, offset: int, accumulate: bool) -> PlanPhase:
    """The sum of the partial results that begin at an offset of the workspace."""
    rows = max(1, 1024 // n)  # large enough to amortize the call of the epilogue
    values = named(parts=parts, offset=offset, m=m, n=n, c_row=ldc, rows=rows, accumulate=int(accumulate))
    return phase(f"addup.{kind}", ADDUP, values, {"work", "context"} | ({"c"} if accumulate else set()), {"c"})


def aligned(elements: int) -> int:
    """A number of elements rounded up to whole cache lines."""
    return ceil(elements / 16) * 16
