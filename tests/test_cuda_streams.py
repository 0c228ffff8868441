"""What a GPU does beside the host: nothing is overwritten, or let go, before the work that needs it is done.

The fake GPU of the other tests does everything at once. This one does nothing until it must, or copies as early as it may: whoever
forgot to wait for something finds wrong values.
"""

import ctypes
import gc
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from weft.runtime.cuda import executable
from weft.runtime.cuda.driver import Gpu
from weft.runtime.cuda.memory import SMALL, DoubleBuffer


class LateGpu:
    """A stream of work that runs when somebody waits for it, and a second one that copies beside it: as late, or as early, as it may."""

    def __init__(self, copies_early: bool) -> None:
        self.copies_early = copies_early
        self.work: list[Callable[[], None]] = []
        self.copies: list[Callable[[], None]] = []
        self.rooms: list[np.ndarray] = []
        self.freed: list[int] = []

    def allocate(self, nbytes: int) -> int:
        """Like the driver's pool: memory that was freed is given out at once, although work before this point may still use it."""
        if self.freed:
            return self.freed.pop()
        self.rooms.append(np.zeros(nbytes, np.uint8))
        return int(self.rooms[-1].ctypes.data)

    def free(self, address: int) -> None:
        self.freed.append(address)

    def enter(self) -> None:
        pass

    wait = unpin = lambda self, *_: None

    def pinned(self, nbytes: int) -> np.ndarray:
        return np.zeros(nbytes, np.uint8)

    def upload_beside(self, target: int, source: np.ndarray, after: int | None) -> int:
        def copy() -> None:
            self.run_work(after or 0)
            ctypes.memmove(target, source.ctypes.data, source.nbytes)

        self.copies.append(copy)
        if self.copies_early:
            self.wait_for(len(self.copies))
        return len(self.copies)

    def wait_for(self, event: int) -> None:
        for i in range(event):
            copy, self.copies[i] = self.copies[i], lambda: None
            copy()

    def after(self, event: int) -> None:
        self.work.append(lambda: self.wait_for(event))

    def mark(self) -> int:
        return len(self.work)

    def run_work(self, end: int) -> None:
        for i in range(end):
            action, self.work[i] = self.work[i], lambda: None
            action()


def note_byte(seen: list[int], address: int) -> None:
    seen.append(ctypes.c_uint8.from_address(address).value)


@pytest.mark.parametrize("copies_early", [False, True])
def test_rooms_for_arguments_are_filled_when_nobody_reads_them(copies_early: bool) -> None:
    gpu = LateGpu(copies_early)
    nbytes, seen = SMALL + 4, list[int]()
    lane = DoubleBuffer(cast(Gpu, gpu), nbytes)
    for i in range(7):
        address = lane.fill(np.full(nbytes, i, np.uint8))
        gpu.work.append(partial(note_byte, seen, address + nbytes - 1))
        lane.done()
    gpu.run_work(len(gpu.work))
    assert seen == list(range(7))


def test_the_first_copies_wait_for_work_that_used_their_memory_before() -> None:
    gpu = LateGpu(copies_early=True)
    nbytes, seen = SMALL + 4, list[int]()
    for value in (101, 102):
        room = gpu.allocate(nbytes)
        ctypes.memset(room, value, nbytes)
        gpu.work.append(partial(note_byte, seen, room))
    for room in gpu.rooms:
        gpu.free(int(room.ctypes.data))
    lane = DoubleBuffer(cast(Gpu, gpu), nbytes)
    for i in range(2):
        lane.fill(np.full(nbytes, i, np.uint8))
        lane.done()
    gpu.run_work(len(gpu.work))
    assert seen == [101, 102]


class LoggingDriver:
    """The driver's functions: each notes that it was called, and succeeds."""

    def __init__(self) -> None:
        self.called: list[str] = []
        self.CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=0)

    def __getattr__(self, name: str) -> Callable[..., tuple[int, None]]:
        return lambda *_: (self.called.append(name), (0, None))[1]


def test_nothing_waits_while_work_is_recorded() -> None:
    gpu = Gpu.__new__(Gpu)
    gpu._api, gpu.lock, gpu._stream = LoggingDriver(), threading.RLock(), 0
    gpu._memsets = cast(Any, SimpleNamespace(replace=lambda graph: 0))
    gpu._recording, gpu._given_back, gpu._small, gpu._unpinned = False, [], set(), []
    dropped = np.zeros(4, np.uint8)
    collects: list[bool] = []

    def enqueue() -> None:
        collects.append(gc.isenabled())
        gpu.unpin(dropped)
        gpu.free(123)

    gpu.record(enqueue)
    assert collects == [False]
    assert gc.isenabled()
    gpu.unpin(dropped)
    freed = ["cuMemFreeAsync", "cuStreamSynchronize", "cuMemFreeHost"]
    recorded = ["cuStreamBeginCapture", "cuStreamEndCapture", *freed, "cuGraphInstantiate", "cuGraphDestroy"]
    assert gpu._api.called == [*recorded, "cuStreamSynchronize", "cuMemFreeHost"]


def test_a_recorded_graph_is_let_go_when_it_has_run() -> None:
    done: list[Any] = []
    made = executable.CudaExecutable.__new__(executable.CudaExecutable)
    made.gpu = cast(Gpu, SimpleNamespace(wait=lambda: done.append("wait"), forget=done.append))
    made._graphs = OrderedDict()
    for i in range(executable.REMEMBERED):
        made._remember((i,), f"graph {i}")
    assert not done
    made._remember((-1,), None)
    assert done == ["wait", "graph 0"]
