"""Offsets in one arena for buffers with known lifetimes.

There are two strategies: in order of birth, each in the smallest free block that fits (best fit); or the largest first, each at the
lowest free offset. The second mostly needs less memory, but reuses memory sooner after its last use, so kernels that were
independent need a barrier between them. It is used only if it saves enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ..ir.storage import ALIGN

_WORTH = 0.9  # largest first is used if it needs at most this part of the memory


@dataclass(eq=False)
class Interval:
    """The lifetime of a buffer: its size, and the first and last time step at which it is alive."""

    nbytes: int
    begin: int
    end: int


def place(buffers: Sequence[Interval]) -> tuple[list[int], int]:
    """The offsets of buffers, given in order of birth, and the bytes of the whole arena."""
    best_fit, largest_first = _best_fit(buffers), _largest_first(buffers)
    sizes = _size(buffers, best_fit), _size(buffers, largest_first)
    return (largest_first, sizes[1]) if sizes[1] <= _WORTH * sizes[0] else (best_fit, sizes[0])


def most(buffers: Sequence[Interval]) -> int:
    """The most bytes that are alive at one time: a lower bound for every plan."""
    changes: dict[int, int] = defaultdict(int)
    for buffer in buffers:
        changes[buffer.begin] += buffer.nbytes
        changes[buffer.end + 1] -= buffer.nbytes
    return max(accumulate((changes[step] for step in sorted(changes)), initial=0))


def _rounded(nbytes: int) -> int:
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)


def _size(buffers: Sequence[Interval], offsets: Sequence[int]) -> int:
    return max((offset + _rounded(buffer.nbytes) for buffer, offset in zip(buffers, offsets, strict=True)), default=0)


def _largest_first(buffers: Sequence[Interval]) -> list[int]:
    order = sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].begin))
    begins, ends, starts, stops = (np.zeros(len(buffers), np.int64) for _ in range(4))  # of those that are placed
    found = [0] * len(buffers)
    for count, i in enumerate(order):
        buffer, wanted = buffers[i], _rounded(buffers[i].nbytes)
        beside = (begins[:count] <= buffer.end) & (ends[:count] >= buffer.begin)
        found[i] = _lowest(starts[:count][beside], stops[:count][beside], wanted)
        begins[count], ends[count], starts[count], stops[count] = buffer.begin, buffer.end, found[i], found[i] + wanted
    return found


def _lowest(starts: np.ndarray, stops: np.ndarray, wanted: int) -> int:
    """The lowest offset with so many free bytes."""
    order = np.argsort(starts)
    free = np.concatenate([[0], np.maximum.accumulate(stops[order])])  # after each of them and all before it
    gaps = np.append(starts[order], np.iinfo(np.int64).max) - free
    return int(free[np.argmax(gaps >= wanted)])


def _best_fit(buffers: Sequence[Interval]) -> list[int]:
    arena, found, step = Arena(), list[int](), 0
    ending: dict[int, list[int]] = defaultdict(list)  # the buffers that die at a time step
    for i, buffer in enumerate(buffers):
        for earlier in range(step, buffer.begin):
            for old in ending[earlier]:
                arena.free_block(found[old], buffers[old].nbytes)
        step = buffer.begin
        ending[buffer.end].append(i)
        found.append(arena.allocate(buffer.nbytes))
    return found


class Arena:
    """The free blocks of a growing arena: best fit."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []  # (offset, bytes), by offset
        self._by_size: list[tuple[int, int]] = []  # (bytes, offset), the same blocks

    def allocate(self, nbytes: int) -> int:
        """The offset of so many bytes."""
        wanted = _rounded(nbytes)
        fitting = bisect_left(self._by_size, (wanted, 0))
        if fitting < len(self._by_size):
            n, offset = self._by_size[fitting]
            self._remove(bisect_left(self.free, (offset, n)))
            if n > wanted:
                self._put(offset + wanted, n - wanted)
        elif self.free and sum(self.free[-1]) == self.size:  # the last block is free: extend it
            offset, _ = self._remove(len(self.free) - 1)
            self.size = offset + wanted
        else:
            offset, self.size = self.size, self.size + wanted
        return offset

    def free_block(self, offset: int, nbytes: int) -> None:
        self._put(offset, _rounded(nbytes))

    def _remove(self, number: int) -> tuple[int, int]:
        """Remove a free block."""
        offset, n = self.free.pop(number)
        self._by_size.pop(bisect_left(self._by_size, (n, offset)))
        return offset, n

    def _put(self, offset: int, n: int) -> None:
        """Add a free block, merged with its free neighbours."""
        after = bisect_left(self.free, (offset, 0))
        if after < len(self.free) and self.free[after][0] == offset + n:
            n += self._remove(after)[1]
        if after and sum(self.free[after - 1]) == offset:
            offset, before = self._remove(after - 1)
            n += before
        insort(self.free, (offset, n))
        insort(self._by_size, (n, offset))
