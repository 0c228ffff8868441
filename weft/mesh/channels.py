"""Memory that the processes of one machine share, and the contexts through which native code finds it (see compiler/cpu/collective)."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..compiler.cpu.collective.layout import LINE, Context
from ..compiler.host import usable_cores
from ..errors import RunError
from .control import ControlPage

SLOT_BYTES = 1 << 18
SPINS = 2_000
PATIENCE = 120.0  # seconds that processes wait for each other at the start


class SharedMemory:
    """A file in memory that all processes map. Rank 0 makes it; when all have mapped it, it has no name any more: nothing can be left behind."""

    def __init__(self, path: Path, nbytes: int, control: ControlPage) -> None:
        self._control = control
        if control.rank == 0:
            _make(path, nbytes)
        self._wait(path.exists, "its memory")
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), nbytes)
        words = np.frombuffer(self._map, np.int64)
        self.address = words.ctypes.data
        self._words = words
        mapped = path.with_name(f"{path.name}.{control.rank}")
        mapped.touch()
        others = [path.with_name(f"{path.name}.{rank}") for rank in range(control.size)]
        if control.rank == 0:
            self._wait(lambda: all(p.exists() for p in others), "the other processes")
            for p in (*others, path):
                p.unlink()
        else:
            self._wait(lambda: not path.exists(), "the other processes")

    def _wait(self, ready: object, what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():  # type: ignore[operator]
            self._control.check()
            if time.monotonic() > deadline:
                raise RunError("parallel", f"rank {self._control.rank} waited for {what} for {PATIENCE:.0f} seconds.")
            time.sleep(0.001)


def _make(path: Path, nbytes: int) -> None:
    beside = path.with_name(f"{path.name}.new")
    try:
        with open(beside, "xb") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
        os.replace(beside, path)
    except OSError as error:
        raise RunError(
            "parallel", f"{nbytes >> 20} MiB of shared memory in {path.parent} cannot be made: {error.strerror}."
        ) from error


class Channel:
    """The shared memory of one group of processes along an axis, seen from one of them."""

    def __init__(
        self, memory: SharedMemory, offset: int, index: int, size: int, lanes: int, control: ControlPage
    ) -> None:
        self.memory, self.index, self.size = memory, index, size
        published = memory.address + offset
        self._sequences = _aligned(lanes * LINE)
        self._words = waiting_words(control, lanes)
        given = {
            Context.INDEX: index, Context.LANES: lanes, Context.PUBLISHED: published, Context.SLOT_BYTES: SLOT_BYTES,
            Context.STAGING: published + size * lanes * LINE, Context.SEQUENCES: self._sequences.ctypes.data,
        }  # fmt: skip
        for word, value in given.items():
            self._words[word] = value

    @property
    def address(self) -> int:
        """Of its context."""
        return int(self._words.ctypes.data)

    @staticmethod
    def nbytes(size: int, lanes: int) -> int:
        """The shared memory of a group."""
        return size * lanes * (LINE + 2 * SLOT_BYTES)


def waiting_words(control: ControlPage, lanes: int) -> np.ndarray:
    """A context that knows how to wait: when to give up, and when to let other threads run."""
    words = _aligned(8 * Context.ALL).view(np.int64)
    crowded = control.size * lanes > usable_cores()
    words[Context.STOP], words[Context.SPINS] = control.stop_address, 0 if crowded else SPINS
    libc = ctypes.CDLL(None)
    for word, function in ((Context.YIELD, libc.sched_yield), (Context.SLEEP, libc.usleep)):
        words[word] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return words


def _aligned(nbytes: int) -> np.ndarray:
    memory = np.zeros(nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]


def table_of(channels: Sequence[Channel]) -> np.ndarray:
    """The table of contexts that programs are given."""
    return np.array([c.address for c in channels], np.int64)
