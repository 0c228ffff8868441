"""A GPU made of the host's memory: kernels run under Triton's interpreter, recorded work is a list of calls.

It has the methods of `weft.runtime.cuda.driver.Gpu`, so that the device above it is tested where there is no GPU. Memory is
poisoned when it is given out and when it is given back, and every copy is checked against what was given out.
"""

import ctypes
import json
import threading
import time
from contextlib import nullcontext

import numpy as np

from triton_runner import interpreted_function, pointer
from weft.compiler.gpu.compile import Binary
from weft.runtime.cuda import device as cuda_device
from weft.runtime.cuda.driver import HIDDEN, OutOfMemory

POISON = 0x7F


class FakeGpu:
    name, number, capability, multiprocessors, driver_version, shared_bytes = "fake", 0, 90, 2, "13.0", 227 << 10
    stream, beside = 0, 1

    def __init__(self, total: int = 1 << 28) -> None:
        self.total, self.rooms, self.pinned_rooms = total, {}, {}
        self.recording: list | None = None
        self.launched = self.replayed = self.copies = self.downloads = 0
        self.synchronized: list[tuple[str, int]] = []  # with streams of other libraries
        self.is_busy = False  # whether work goes on for ever
        self.functions = {}
        self.lock = threading.RLock()

    def bus(self) -> str:
        return "0000:3b:00.0"

    def enter(self) -> None:
        pass

    def _do(self, action, beside: bool = False) -> None:
        if self.recording is None:
            action()
        else:
            self.recording.append(action)

    # --- memory -----------------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        assert self.recording is None, "memory was asked for while recording"
        if sum(r.nbytes for r in self.rooms.values()) + nbytes > self.total:
            raise OutOfMemory("cuda", "the GPU is out of memory.")
        room = np.full(nbytes + 512, POISON, np.uint8)
        address = -(-room.ctypes.data // 256) * 256
        self.rooms[address] = room[:nbytes]
        self.rooms[address] = np.ctypeslib.as_array((ctypes.c_uint8 * max(nbytes, 1)).from_address(address))
        self.functions[address] = room  # keeps it alive
        return address

    def free(self, address: int) -> None:
        self.rooms.pop(address)[:] = POISON
        del self.functions[address]

    def memory(self) -> tuple[int, int]:
        return self.total - self.used(), self.total

    def used(self) -> int:
        return sum(r.nbytes for r in self.rooms.values())

    def pinned(self, nbytes: int) -> np.ndarray:
        memory = np.zeros(nbytes, np.uint8)
        self.pinned_rooms[memory.ctypes.data] = nbytes
        return memory

    def unpin(self, memory: np.ndarray) -> None:
        del self.pinned_rooms[memory.ctypes.data]

    def _assert_ours(self, address: int) -> None:
        """A kernel reads and writes memory that is allocated when it runs: not that of an arena that has moved."""
        device = any(a <= address <= a + room.nbytes for a, room in self.rooms.items())
        assert device or any(a <= address <= a + n for a, n in self.pinned_rooms.items()), "not our memory"

    def _inside(self, address: int, nbytes: int) -> None:
        assert any(a <= address and address + nbytes <= a + r.nbytes for a, r in self.rooms.items()), "not our memory"

    # --- copies -----------------------------------------------------------------------------------------------------------------

    def upload(self, target: int, source: np.ndarray) -> None:
        self._inside(target, source.nbytes)
        ctypes.memmove(target, source.ctypes.data, source.nbytes)

    def upload_beside(self, target: int, source: np.ndarray, after=None) -> object:
        self.upload(target, source)
        return object()

    def download(self, target: np.ndarray, source: int) -> None:
        assert self.recording is None, "the host looked while recording"
        self.downloads += 1
        self._inside(source, target.nbytes)
        ctypes.memmove(target.ctypes.data, source, target.nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._inside(target, nbytes)
        self._inside(source, nbytes)
        self.copies += 1
        self._do(lambda: ctypes.memmove(target, source, nbytes))

    def clear(self, target: int, nbytes: int, beside: bool = False) -> None:
        self._do(lambda: ctypes.memset(target, 0, nbytes), beside)

    # --- kernels ----------------------------------------------------------------------------------------------------------------

    def load(self, code: bytes, symbol: str, shared: int):
        known = json.loads(code)
        return interpreted_function(known["text"], symbol), known["types"]

    def launch(self, function, programs: int, threads: int, shared: int, arguments, beside: bool = False) -> None:
        kernel, types = function
        assert len(types) == len(arguments), HIDDEN
        pointers = [pointer(address, kind) for address, kind in zip(arguments, types, strict=True)]

        def run() -> None:
            self.launched += 1
            for address, kind in zip(arguments, types, strict=True):
                if kind.startswith("*") and address:
                    self._assert_ours(address)
            with np.errstate(all="ignore"):
                kernel[(programs,)](*pointers)

        assert programs > 0, "the driver refuses to start no program"
        self._do(run, beside)

    # --- work beside the stream: here in order with all other; see fake_nccl.py -----------------------------------------------------

    def open_beside(self) -> None:
        pass

    def branch(self) -> None:
        pass

    def mark_beside(self) -> object:
        return object()

    # --- graphs and waiting -------------------------------------------------------------------------------------------------------

    def record(self, enqueue):
        self.recording = recorded = []
        try:
            enqueue()
        finally:
            self.recording = None
        return recorded

    def replay(self, graph) -> None:
        self.replayed += 1
        for action in graph:
            action()

    def forget(self, graph) -> None:
        graph.clear()

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    @property
    def is_recording(self) -> bool:
        return self.recording is not None

    def is_done(self, event) -> bool:
        return not self.is_busy

    def precede(self, stream: int) -> None:
        assert not self.is_recording
        self.synchronized.append(("precede", stream))

    def follow(self, stream: int) -> None:
        assert not self.is_recording
        self.synchronized.append(("follow", stream))

    def after(self, event) -> None:
        pass

    def wait_for(self, event) -> None:
        pass

    def wait(self) -> None:
        pass


def cast(sources, capability: int) -> list[Binary]:
    """Kernels as text, for the interpreter."""
    from weft.compiler.gpu.compile import compile_request

    orders = [compile_request(source, capability) for source in sources]
    return [Binary(json.dumps({"text": o.text, "types": o.types}).encode(), o.name, o.warps, 0) for o in orders]


def install(monkeypatch, total: int = 1 << 28) -> FakeGpu:
    """Make `cuda` name a device on a fake GPU."""
    gpu = FakeGpu(total)
    monkeypatch.setattr(cuda_device, "_found", [cuda_device.CudaDevice(gpu, "cuda")])
    monkeypatch.setattr("weft.compiler.gpu.compile_pool.compile_kernels", cast)
    monkeypatch.setattr("weft.compiler.gpu.compile_pool.workers_ready", nullcontext)  # nobody would ask them
    return gpu
