"""Memory of programs: slots in the frame, sets of address ranges, and the memory plan."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping

from ...graph.node import Node
from ...records import dataclass
from .frame import ALIGN as ALIGN
from .frame import nbytes as nbytes
from .kernel import Kernel

ARENA, KEPT = 0, 2  # the frame's entries for the arena, and for memory that persists between runs


@dataclass(frozen=True)
class Slot:
    """A range of memory: an entry of the frame (a pointer), offset and size."""

    base: int
    offset: int
    nbytes: int

    def overlaps(self, other: Slot) -> bool:
        return (
            self.base == other.base
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


NOWHERE = Slot(ARENA, 0, 0)


class Ranges:
    """A set of memory ranges, stored as disjoint intervals, with overlap tests in logarithmic time."""

    def __init__(self) -> None:
        self._stops: dict[int, list[int]] = defaultdict(list)  # by the entry of the frame, in order
        self._starts: dict[int, list[int]] = defaultdict(list)

    def add(self, slot: Slot) -> None:
        """Add a slot; ranges that it overlaps or touches are merged with it."""
        starts, stops = self._starts[slot.base], self._stops[slot.base]
        start, stop = slot.offset, slot.offset + slot.nbytes
        if start == stop:
            return
        first, last = bisect_left(stops, start), bisect_right(starts, stop)
        if first < last:
            start, stop = min(start, starts[first]), max(stop, stops[last - 1])
        starts[first:last], stops[first:last] = [start], [stop]

    @property
    def nbytes(self) -> int:
        """The bytes of all ranges together."""
        return sum(
            stop - start
            for base, starts in self._starts.items()
            for start, stop in zip(starts, self._stops[base], strict=True)
        )

    def overlap(self, slot: Slot) -> bool:
        """Whether a slot overlaps any of the ranges."""
        if not slot.nbytes:
            return False
        first = bisect_right(
            self._stops[slot.base], slot.offset
        )  # the first range that ends after the start of the slot
        starts = self._starts[slot.base]
        return first < len(starts) and starts[first] < slot.offset + slot.nbytes


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of every stored value and of every kernel's workspace."""

    slots: Mapping[Node, Slot]
    scratch: Mapping[Kernel, Slot]  # the workspace of a kernel
    packed: Mapping[Kernel, Slot]  # operands prepared once
    arena: int  # bytes
    kept: int  # bytes
    needed: int  # the largest number of bytes live at one time: a lower bound for every plan
    recomputed: int = 0  # bytes that are recomputed instead of kept
