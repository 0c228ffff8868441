"""Offsets in one arena for buffers with known lifetimes.

There are two strategies: in order of birth, each in the smallest free block that fits (best fit); or the largest first, each at the
lowest free offset. The second mostly needs less memory, but reuses memory sooner after its last use, so kernels that were
independent need a barrier between them. It is used only if it saves enough, or if a buffer is alive several times: a value that is
computed again has the same offset each time, and other buffers take its place in between.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import accumulate

import numpy as np

from ...records import dataclass
from ..ir.storage import ALIGN

_WORTH = 0.9  # largest first is used if it needs at most this part of the memory


@dataclass(eq=False)
class Interval:
    """The lifetime of a buffer: its size, and the first and last time step at which it is alive."""

    nbytes: int
    begin: int
    end: int
    earlier: list[tuple[int, int]] = field(default_factory=list)  # times before, if it is alive several times

    @property
    def spans(self) -> list[tuple[int, int]]:
        """All times at which it is alive."""
        return [*self.earlier, (self.begin, self.end)]

    def revive(self, begin: int, end: int) -> None:
        """Let it be alive once more, later."""
        self.earlier.append((self.begin, self.end))
        self.begin, self.end = begin, end


def place(buffers: Sequence[Interval]) -> tuple[list[int], int]:
    """The offsets of buffers, given in order of birth, and the bytes of the whole arena."""
    if any(buffer.earlier for buffer in buffers):
        found = [_in_order(buffers, sorted(range(len(buffers)), key=key)) for key in _orders(buffers)]
        return min(((offsets, _size(buffers, offsets)) for offsets in found), key=lambda one: one[1])
    best_fit, largest_first = _best_fit(buffers), _largest_first(buffers)
    sizes = _size(buffers, best_fit), _size(buffers, largest_first)
    return (largest_first, sizes[1]) if sizes[1] <= _WORTH * sizes[0] else (best_fit, sizes[0])


def most(buffers: Sequence[Interval]) -> int:
    """The most bytes that are alive at one time: a lower bound for every plan."""
    return max((alive for _, alive in live_bytes(buffers)), default=0)


def live_bytes(buffers: Sequence[Interval]) -> list[tuple[int, int]]:
    """The time steps at which the bytes that are alive change, in order, and those bytes."""
    changes: dict[int, int] = defaultdict(int)
    for buffer in buffers:
        for begin, end in buffer.spans:
            changes[begin] += buffer.nbytes
            changes[end + 1] -= buffer.nbytes
    steps = sorted(changes)
    return list(zip(steps, accumulate(changes[step] for step in steps), strict=True))


def _rounded(nbytes: int) -> int:
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)


def _size(buffers: Sequence[Interval], offsets: Sequence[int]) -> int:
    return max((offset + _rounded(buffer.nbytes) for buffer, offset in zip(buffers, offsets, strict=True)), default=0)


def _largest_first(buffers: Sequence[Interval]) -> list[int]:
    return _in_order(buffers, sorted(range(len(buffers)), key=lambda i: (-buffers[i].nbytes, buffers[i].begin)))


def _orders(buffers: Sequence[Interval]) -> list[Callable[[int], tuple[int, ...]]]:
    """Orders in which buffers with several lifetimes are placed: which one leaves the fewest gaps depends on the program."""
    first = [buffer.spans[0][0] for buffer in buffers]
    alive = [sum(end - begin + 1 for begin, end in buffer.spans) for buffer in buffers]
    size = [buffer.nbytes for buffer in buffers]
    return [
        lambda i: (-size[i], first[i]),
        lambda i: (-len(buffers[i].earlier), -size[i], first[i]),
        lambda i: (-size[i] * alive[i], first[i]),
        lambda i: (-alive[i], -size[i], first[i]),
    ]


def _in_order(buffers: Sequence[Interval], order: Sequence[int]) -> list[int]:
    """Each at the lowest offset that is free, in an order."""
    spans = sum(1 + len(buffer.earlier) for buffer in buffers)
    begins, ends, starts, stops = (np.zeros(spans, np.int64) for _ in range(4))  # of those that are placed
    found, count = [0] * len(buffers), 0
    for i in order:
        buffer, wanted = buffers[i], _rounded(buffers[i].nbytes)
        beside = np.zeros(count, bool)
        for begin, end in buffer.spans:
            beside |= (begins[:count] <= end) & (ends[:count] >= begin)
        found[i] = _lowest(starts[:count][beside], stops[:count][beside], wanted)
        for begin, end in buffer.spans:
            begins[count], ends[count], starts[count], stops[count] = begin, end, found[i], found[i] + wanted
            count += 1
    return found


def _lowest(starts: np.ndarray, stops: np.ndarray, wanted: int) -> int:
    """The lowest offset with this many free bytes."""
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
