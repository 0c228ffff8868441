"""Places in one range of memory for rooms that are there for a time only.

Two ways: one after the other as they come, each in the smallest free piece that fits; or the largest first, each as low as it can
lie. The second mostly needs less, but makes more rooms neighbours in time that are neighbours in place: work that did not have to
wait for other work then has to. So it must be worth it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGN = 64  # bytes
_WORTH = 0.9  # the part of the memory to which the second way must bring it


@dataclass(eq=False)
class Room:
    """So many bytes, from one moment to another, both included."""

    nbytes: int
    begin: int
    end: int
    offset: int = 0

    @property
    def rounded(self) -> int:
        return max(ALIGN, -(-self.nbytes // ALIGN) * ALIGN)


def place(rooms: Sequence[Room]) -> int:
    """Give all rooms, which come in the order of their beginning, their offsets; the bytes of the whole range."""
    size = _in_turn(rooms)
    before = [room.offset for room in rooms]
    if rooms and (best := _largest_first(rooms)) <= _WORTH * size:
        return best
    for room, offset in zip(rooms, before, strict=True):
        room.offset = offset
    return size


def most(rooms: Sequence[Room]) -> int:
    """The most bytes that are taken at one time: no plan can be smaller."""
    changes: dict[int, int] = defaultdict(int)
    for room in rooms:
        changes[room.begin] += room.nbytes
        changes[room.end + 1] -= room.nbytes
    return max(0, *np.cumsum([changes[moment] for moment in sorted(changes)]).tolist()) if rooms else 0


def _largest_first(rooms: Sequence[Room]) -> int:
    begins, ends, starts, stops = (np.zeros(len(rooms), np.int64) for _ in range(4))
    for count, room in enumerate(sorted(rooms, key=lambda r: (-r.rounded, r.begin))):
        beside = (begins[:count] <= room.end) & (ends[:count] >= room.begin)
        room.offset = _lowest(starts[:count][beside], stops[:count][beside], room.rounded)
        begins[count], ends[count] = room.begin, room.end
        starts[count], stops[count] = room.offset, room.offset + room.rounded
    return int(stops.max())


def _lowest(starts: np.ndarray, stops: np.ndarray, wanted: int) -> int:
    """The lowest offset with so many bytes that are not taken."""
    order = np.argsort(starts)
    free = np.concatenate([[0], np.maximum.accumulate(stops[order])])  # after each of them, and all before it
    gaps = np.append(starts[order], np.iinfo(np.int64).max) - free
    return int(free[np.argmax(gaps >= wanted)])


def _in_turn(rooms: Sequence[Room]) -> int:
    ending: dict[int, list[Room]] = defaultdict(list)
    for room in rooms:
        ending[room.end].append(room)
    arena, moment = Arena(), 0
    for room in rooms:
        for earlier in range(moment, room.begin):
            for old in ending[earlier]:
                arena.give_back(old)
        moment = room.begin
        arena.take(room)
    return arena.size


class Arena:
    """Free pieces of one growing range: the smallest that fits is taken."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []  # (offset, bytes), by offset

    def take(self, room: Room) -> None:
        rounded = room.rounded
        fitting = [(n, o) for o, n in self.free if n >= rounded]
        if fitting:
            n, room.offset = min(fitting)
            self.free.remove((room.offset, n))
            if n > rounded:
                self._put(room.offset + rounded, n - rounded)
        elif self.free and sum(self.free[-1]) == self.size:  # the last piece is free: make it longer
            room.offset, _ = self.free.pop()
            self.size = room.offset + rounded
        else:
            room.offset, self.size = self.size, self.size + rounded

    def give_back(self, room: Room) -> None:
        self._put(room.offset, room.rounded)

    def _put(self, offset: int, n: int) -> None:
        self.free.append((offset, n))
        self.free.sort()
        joined: list[tuple[int, int]] = []
        for start, length in self.free:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        self.free = joined
