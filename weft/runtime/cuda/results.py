"""Buffers for the results of a program on a GPU.

A recorded graph writes to fixed addresses. Two sets of buffers alternate, and their arrays are returned as they are: a loop that keeps only
its last result has released the previous one when a set is reused. If a caller keeps results, later runs return copies.

Large results are allocated anew for each run and belong to the caller, so that an idle program holds no large buffers. The memory
pool often returns the same addresses, so recorded graphs remain useful.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import prod
from typing import NamedTuple

from ...dtypes import DType
from ...graph.node import Shape
from .driver import Gpu
from .memory import LARGE, DeviceArray, empty_array

_OURS = 3  # references to an array that only its set refers to: the set's own, and two made by the check


class ResultSet(NamedTuple):
    """A buffer for each result, and for each output of the program its address; 0 for outputs that replace inputs."""

    arrays: list[DeviceArray]
    addresses: tuple[int, ...]


class ResultBuffers:
    """See the head of this file. `kinds`: shape and type of each result, by its number among `count` outputs."""

    def __init__(self, gpu: Gpu, kinds: Mapping[int, tuple[Shape, DType]], count: int) -> None:
        self._gpu, self._kinds, self._count = gpu, kinds, count
        self._sets: list[ResultSet] = []
        self._turn = 0
        self._copies = False
        self._keeps = sum(prod(shape) * dtype.itemsize for shape, dtype in kinds.values()) < LARGE

    def addresses(self) -> tuple[int, ...]:
        """The addresses that the next run writes to; 0 for outputs that replace inputs."""
        if self._keeps:
            self._alternate()
        else:
            self._sets = [self._new_set()]
        return self._sets[self._turn].addresses

    def _alternate(self) -> None:
        if not self._copies:
            self._turn ^= 1
        if len(self._sets) <= self._turn:
            self._sets = [self._new_set(), self._new_set()]
        if self._copies:
            return
        for array in self._sets[self._turn].arrays:
            if _is_held(array):
                self._copies, self._turn, self._sets = True, 0, [self._new_set()]
                return

    def _new_set(self) -> ResultSet:
        arrays = self._fresh()
        places = dict(zip(self._kinds, arrays, strict=True))
        return ResultSet(arrays, tuple(places[i].memory.address if i in places else 0 for i in range(self._count)))

    def _fresh(self) -> list[DeviceArray]:
        return [empty_array(self._gpu, *kind) for kind in self._kinds.values()]

    def take(self) -> list[DeviceArray]:
        """The results of the run that was enqueued last."""
        now = self._sets[self._turn].arrays
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
    """Whether the caller still refers to the array, or to its memory."""
    return sys.getrefcount(array) > _OURS + 1 or sys.getrefcount(array.memory) > _OURS - 1
