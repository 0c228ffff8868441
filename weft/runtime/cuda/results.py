"""Where a program on a GPU writes its results.

A recorded graph writes to the addresses it knows. Two sets of rooms take turns, and are handed out as they are: by the time a set comes
round again, a loop that looks at its last result only has dropped the one before. Whoever keeps results is given copies from then on.

Large results are new memory at each run, and then belong to whoever has them: no program keeps rooms of such a size when it is done.
What the pool hands out is often where it was before, so that recorded graphs are of use all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import prod

from ...dtypes import DType
from ...graph.node import Shape
from .driver import Gpu
from .memory import LARGE, DeviceArray, empty_array

_OURS = 3  # references to a room that nobody else has: the set's, and two of the question itself


class ResultBuffers:
    """See the head of this file. `kinds`: shape and type of each result, by its number among `count` outputs."""

    def __init__(self, gpu: Gpu, kinds: Mapping[int, tuple[Shape, DType]], count: int) -> None:
        self._gpu, self._kinds, self._count = gpu, kinds, count
        self._sets: list[list[DeviceArray]] = []
        self._turn = 0
        self._copies = False
        self._keeps = sum(prod(shape) * dtype.itemsize for shape, dtype in kinds.values()) < LARGE

    def addresses(self) -> tuple[int, ...]:
        """Where the next run writes; 0 for outputs that replace inputs."""
        if not self._kinds:
            return (0,) * self._count
        if self._keeps:
            self._take_turns()
        else:
            self._sets = [self._fresh()]
        places = dict(zip(self._kinds, self._sets[self._turn], strict=True))
        return tuple(places[i].memory.address if i in places else 0 for i in range(self._count))

    def _take_turns(self) -> None:
        if not self._copies:
            self._turn ^= 1
        if len(self._sets) <= self._turn:
            self._sets = [self._fresh(), self._fresh()]
        if not self._copies and any(_is_held(array) for array in self._sets[self._turn]):
            self._copies, self._turn, self._sets = True, 0, [self._fresh()]

    def _fresh(self) -> list[DeviceArray]:
        return [empty_array(self._gpu, *kind) for kind in self._kinds.values()]

    def handed_out(self) -> list[DeviceArray]:
        """The results of the run that stands in the stream."""
        if not self._kinds:
            return []
        now = self._sets[self._turn]
        if not self._keeps:
            self._sets = []
        if not self._copies:
            return list(now)
        copies = self._fresh()
        for mine, copy in zip(now, copies, strict=True):
            if copy.memory.nbytes:
                self._gpu.copy(copy.memory.address, mine.memory.address, copy.memory.nbytes)
        return copies


def _is_held(array: DeviceArray) -> bool:
    """Whether somebody has the array, or its memory."""
    return sys.getrefcount(array) > _OURS + 1 or sys.getrefcount(array.memory) > _OURS - 1
