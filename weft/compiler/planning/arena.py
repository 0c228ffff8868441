"""Places in one range of memory for rooms that are there for a time only.

Two ways: one after the other as they come, each in the smallest free piece that fits; or the largest first, each as low as it can
lie. The second mostly needs less, but makes more rooms neighbours in time that are neighbours in place: work that did not have to
wait for other work then has to. So it must be worth it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ..ir.storage import ALIGN

_WORTH = 0.9  # the part of the memory to which the second way must bring it


@dataclass(eq=False)
class Interval:
    """So many bytes, from one moment to another, both included."""

    nbytes: int
    begin: int
    end: int


def place(rooms: Sequence[Interval]) -> tuple[list[int], int]:
    """The offsets of rooms, which come in the order of their beginning, and the bytes of the whole range."""
    in_turn, largest_first = _in_turn(rooms), _largest_first(rooms)
    sizes = _size(rooms, in_turn), _size(rooms, largest_first)
    return (largest_first, sizes[1]) if sizes[1] <= _WORTH * sizes[0] else (in_turn, sizes[0])


def most(rooms: Sequence[Interval]) -> int:
    """The most bytes that are taken at one time: no plan can be smaller."""
    changes: dict[int, int] = defaultdict(int)
    for room in rooms:
        changes[room.begin] += room.nbytes
        changes[room.end + 1] -= room.nbytes
    return max(accumulate((changes[moment] for moment in sorted(changes)), initial=0))


def _rounded(nbytes: int) -> int:
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)


def _size(rooms: Sequence[Interval], offsets: Sequence[int]) -> int:
    return max((offset + _rounded(room.nbytes) for room, offset in zip(rooms, offsets, strict=True)), default=0)


def _largest_first(rooms: Sequence[Interval]) -> list[int]:
    order = sorted(range(len(rooms)), key=lambda i: (-rooms[i].nbytes, rooms[i].begin))
    begins, ends, starts, stops = (np.zeros(len(rooms), np.int64) for _ in range(4))  # of those that have a place
    found = [0] * len(rooms)
    for count, i in enumerate(order):
        room, wanted = rooms[i], _rounded(rooms[i].nbytes)
        beside = (begins[:count] <= room.end) & (ends[:count] >= room.begin)
        found[i] = _lowest(starts[:count][beside], stops[:count][beside], wanted)
        begins[count], ends[count], starts[count], stops[count] = room.begin, room.end, found[i], found[i] + wanted
    return found


def _lowest(starts: np.ndarray, stops: np.ndarray, wanted: int) -> int:
    """The lowest offset with so many bytes that are not taken."""
    order = np.argsort(starts)
    free = np.concatenate([[0], np.maximum.accumulate(stops[order])])  # after each of them, and all before it
    gaps = np.append(starts[order], np.iinfo(np.int64).max) - free
    return int(free[np.argmax(gaps >= wanted)])


def _in_turn(rooms: Sequence[Interval]) -> list[int]:
    arena, found, moment = Arena(), list[int](), 0
    ending: dict[int, list[int]] = defaultdict(list)  # the rooms that end at a moment
    for i, room in enumerate(rooms):
        for earlier in range(moment, room.begin):
            for old in ending[earlier]:
                arena.give_back(found[old], rooms[old].nbytes)
        moment = room.begin
        ending[room.end].append(i)
        found.append(arena.take(room.nbytes))
    return found


class Arena:
    """Free pieces of one growing range: the smallest that fits is taken."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []  # (offset, bytes), by offset
        self._by_size: list[tuple[int, int]] = []  # (bytes, offset), the same pieces

    def take(self, nbytes: int) -> int:
        """The offset of so many bytes."""
        wanted = _rounded(nbytes)
        fitting = bisect_left(self._by_size, (wanted, 0))
        if fitting < len(self._by_size):
            n, offset = self._by_size[fitting]
            self._remove(bisect_left(self.free, (offset, n)))
            if n > wanted:
                self._put(offset + wanted, n - wanted)
        elif self.free and sum(self.free[-1]) == self.size:  # the last piece is free: make it longer
            offset, _ = self._remove(len(self.free) - 1)
            self.size = offset + wanted
        else:
            offset, self.size = self.size, self.size + wanted
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        self._put(offset, _rounded(nbytes))

    def _remove(self, number: int) -> tuple[int, int]:
        """Take a piece off the list."""
        offset, n = self.free.pop(number)
        self._by_size.pop(bisect_left(self._by_size, (n, offset)))
        return offset, n

    def _put(self, offset: int, n: int) -> None:
        """A free piece, joined with its free neighbours."""
        after = bisect_left(self.free, (offset, 0))
        if after < len(self.free) and self.free[after][0] == offset + n:
            n += self._remove(after)[1]
        if after and sum(self.free[after - 1]) == offset:
            offset, before = self._remove(after - 1)
            n += before
        insort(self.free, (offset, n))
        insort(self._by_size, (n, offset))
