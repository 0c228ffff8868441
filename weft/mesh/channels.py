"""Shared memory between the processes of one machine, and the contexts by which native code finds it (see compiler/cpu/collective)."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Sequence
from typing import Protocol
from zlib import crc32

import numpy as np

from ..compiler.cpu.collective.layout import LINE, TAG_BITS, Context
from ..compiler.host import usable_cores
from ..errors import RunError, UserError
from .control import MAPPED, MEMORY, PURPOSE, ControlPage, new_memory, path_of

SLOT_BYTES = 1 << 18
# A quarter of a millisecond, more than twice a sleep of SLEEP_MICROSECONDS: else a rank whose peer sleeps would sleep too, and keep it waiting in turn.
SPINS = 10_000
YIELDS = 20_000  # milliseconds
PATIENCE = 120.0  # timeout in seconds for processes to meet at startup


class SharedMemory:
    """An anonymous file in memory that all processes map. Rank 0 creates it and announces its location; without a name, it cannot be left behind."""

    def __init__(self, number: int, nbytes: int, control: ControlPage, purpose: str = "links") -> None:
        self._control = control
        checksum = crc32(purpose.encode())
        if control.rank == 0:
            file = new_memory("weft mesh", nbytes)
            control.words[PURPOSE] = checksum
            control.words[MEMORY] = number << 44 | os.getpid() << 20 | file
        self._wait(lambda: int(control.words[MEMORY]) >> 44 == number, "its memory")
        if control.words[PURPOSE] != checksum:
            raise UserError("mesh", f"all ranks must create the same mesh, got {purpose} on rank {control.rank} and another one on rank 0.")  # fmt: skip
        place = int(control.words[MEMORY])
        with open(path_of(place & 0xFFFFF, place >> 20 & 0xFFFFFF), "r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), nbytes)
        self.words = np.frombuffer(self._map, np.int64)
        self.address = self.words.ctypes.data
        control.words[MAPPED + control.rank] = number
        if control.rank == 0:
            mapped = control.words[MAPPED : MAPPED + control.size]
            self._wait(lambda: bool((mapped == number).all()), "the other processes")
            os.close(file)

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            self._control.check()
            if time.monotonic() > deadline:
                raise RunError("parallel", f"rank {self._control.rank} waited for {what} for {PATIENCE:.0f} seconds.")
            time.sleep(0.001)


class MappedMemory(Protocol):
    """Memory shared between processes."""

    words: np.ndarray
    address: int


class Channel:
    """The shared memory of one group of processes along an axis, as seen by one of them."""

    def __init__(
        self, memory: MappedMemory, offset: int, index: int, ranks: Sequence[int], lanes: int, control: ControlPage
    ) -> None:
        self.memory, self.index, self.ranks = memory, index, ranks
        size = len(ranks)
        published = memory.address + offset
        self._sequences = _aligned(lanes * LINE)
        self._words = waiting_words(control, lanes)
        given = {
            Context.INDEX: index, Context.LANES: lanes, Context.PUBLISHED: published, Context.SLOT_BYTES: SLOT_BYTES,
            Context.STAGING: published + size * lanes * LINE, Context.SEQUENCES: self._sequences.ctypes.data,
        }  # fmt: skip
        for word, value in given.items():
            self._words[word] = value

        first = offset // 8
        lines = memory.words[first : first + size * lanes * LINE // 8].reshape(size, lanes, LINE // 8)
        self._published, self._on_device = lines[..., 0], lines[:, 0, 1]
        control.waits.append(self.waits_for)

    def waits_for(self) -> set[int]:
        """The ranks behind this process: it waits for them, now or soon."""
        counts, on_device = self._published >> TAG_BITS, self._on_device >> TAG_BITS
        behind = (counts < counts[self.index]).any(axis=1) | (on_device < on_device[self.index])
        return {rank for rank, late in zip(self.ranks, behind, strict=True) if late}

    def begin_on_device(self, tag: int) -> int | None:
        """Count a program whose collectives run on GPUs without the host; returns the index of a peer that runs a different one."""
        mine = next_position(int(self._on_device[self.index]), tag)
        self._on_device[self.index] = mine
        seen = enumerate(self._on_device.tolist())
        return next((i for i, other in seen if other >> TAG_BITS == mine >> TAG_BITS and other != mine), None)

    @property
    def address(self) -> int:
        """The address of its context."""
        return int(self._words.ctypes.data)

    @staticmethod
    def nbytes(size: int, lanes: int) -> int:
        """The bytes of shared memory of a group."""
        return size * lanes * (LINE + 2 * SLOT_BYTES)


def next_position(position: int, tag: int) -> int:
    """The position of the next exchange: a count in the high bits, and a tag that identifies the exchange."""
    return (position >> TAG_BITS) + 1 << TAG_BITS | tag


def waiting_words(control: ControlPage, lanes: int, words: int = Context.ALL) -> np.ndarray:
    """A context for waiting native code: when to give up, and when to yield to other threads.

    Processes that share cores yield immediately. If each has its own core, they spin for a while and then sleep between polls: a core
    that is yielded goes to other programs for milliseconds, at every exchange.
    """
    found = _aligned(8 * words).view(np.int64)
    crowded = control.size * lanes > usable_cores()
    found[Context.STOP] = control.stop_address
    found[Context.SPINS], found[Context.YIELDS] = (0, YIELDS) if crowded else (SPINS, 0)
    libc = ctypes.CDLL(None)
    for word, function in ((Context.YIELD, libc.sched_yield), (Context.SLEEP, libc.usleep)):
        found[word] = ctypes.cast(function, ctypes.c_void_p).value or 0
    return found


def _aligned(nbytes: int) -> np.ndarray:
    memory = np.zeros(nbytes + LINE, np.uint8)
    start = -memory.ctypes.data % LINE
    return memory[start : start + nbytes]
