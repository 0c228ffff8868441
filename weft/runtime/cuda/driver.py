"""One GPU through the CUDA driver API: memory, copies, kernels, and CUDA graphs. All work of a GPU is enqueued on one stream, in order;
copies from the host use a second stream and communication with other GPUs a third one, both overlapping with it. Nothing here waits for the
GPU unless its name says so.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...compiler.gc_pause import gc_paused
from ...errors import RunError, UserError
from ...hints import install
from .graph_memsets import MemsetKernels

INSTALL = f"Install what weft needs for NVIDIA GPUs. {install('cuda')}"
LEGACY_STREAM = 1  # the default stream of most libraries, by the driver's own number for it
NO_TIMING = 2  # the driver's flag for events that are only waited for
MAPPED = 2  # the driver's flag for memory of the host that kernels may touch
BLOCK, BLOCKS = 256, 256  # bytes of a small piece of memory, and how many are allocated at once
HIDDEN = (
    2  # pointers that Triton's kernels take after their own arguments: scratch memory, which weft's kernels never use
)
_ADVICE = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "A kernel touched memory that is not its own; this process cannot use the GPU any more. "
    "Please report it, with the output of WEFT_DEBUG=3.",
    "CUDA_ERROR_LAUNCH_FAILED": "A kernel failed; this process cannot use the GPU any more. Start it again.",
    "CUDA_ERROR_NO_DEVICE": "No NVIDIA GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES.",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "Driver and libraries do not fit together: restart after a driver update.",
}


class OutOfMemory(RunError):
    """GPU memory is exhausted. Callers that know what was allocated raise it again with advice."""


def bindings() -> Any:
    """NVIDIA's Python bindings of the driver, or one sentence about what is missing."""
    try:
        from cuda.bindings import driver  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UserError("cuda", f"the package cuda-bindings is missing ({error}). {INSTALL}") from None
    return driver


def gpu_count() -> int:
    """How many GPUs there are; a UserError says why there are none."""
    api = bindings()
    try:
        [code] = api.cuInit(0)
    except RuntimeError as error:  # the bindings look for the driver's library at the first call
        raise UserError("cuda", f"there is no NVIDIA driver on this machine ({error}).") from None
    if code:
        raise UserError("cuda", f"the NVIDIA driver does not start: {_say(code)}")
    return int(_checked("devices", api.cuDeviceGetCount()))


def _say(code: Any) -> str:
    name = str(code.name)
    return f"{name}. {_ADVICE.get(name, '')}".strip()


def _checked(what: str, answer: tuple[Any, ...]) -> Any:
    """The value of a call of the driver."""
    code, *values = answer
    if code:
        if code.name == "CUDA_ERROR_OUT_OF_MEMORY":
            raise OutOfMemory("cuda", f"the GPU is out of memory ({what}).")
        raise RunError("cuda", f"{what}: {_say(code)}")
    return values[0] if len(values) == 1 else values


class Gpu:
    """A GPU, opened: see the head of this file."""

    def __init__(self, number: int) -> None:
        self._api = api = bindings()
        self.number = number
        self.lock = threading.RLock()  # held while a sequence of commands is enqueued
        self._recording = False
        self._given_back: list[int] = []  # while work was recorded
        self._unpinned: list[np.ndarray] = []  # as well
        self._blocks: list[int] = []  # small pieces of memory that are free
        self._small: set[int] = set()  # all of them
        self._device = self._do("device", api.cuDeviceGet(number))
        self._context = self._do("context", api.cuDevicePrimaryCtxRetain(self._device))
        self.enter()
        stream = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = self._do("stream", api.cuStreamCreate(stream))
        self._copies = self._do("stream", api.cuStreamCreate(stream))
        self.stream = int(self._stream)
        self._beside: Any = None
        self._pool = self._do("memory pool", api.cuDeviceGetDefaultMemPool(self._device))
        keep = api.cuuint64_t(2**64 - 1)  # freed memory stays in the pool for the next allocation
        attribute = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        self._do("memory pool", api.cuMemPoolSetAttribute(self._pool, attribute, keep))
        self.name: str = self._do("name", api.cuDeviceGetName(128, self._device)).split(b"\0")[0].decode()
        major, minor = self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")
        self.capability = 10 * major + minor
        self.multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        self.shared_bytes = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        version = int(self._do("version", api.cuDriverGetVersion()))
        self.driver_version = f"{version // 1000}.{version % 1000 // 10}"

    def _do(self, what: str, answer: tuple[Any, ...]) -> Any:
        return _checked(what, answer)

    @cached_property
    def _memsets(self) -> MemsetKernels:
        return MemsetKernels(self._api, self._do)

    def _attribute(self, name: str) -> int:
        attribute = getattr(self._api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._do(name, self._api.cuDeviceGetAttribute(attribute, self._device)))

    def bus(self) -> str:
        """Its address on the PCI bus: the number of a GPU depends on which ones this process may see."""
        address: bytes = self._do("address", self._api.cuDeviceGetPCIBusId(32, self._device))
        return address.split(b"\0")[0].decode()

    def enter(self) -> None:
        """Make this thread work on this GPU."""
        if getattr(_THREAD, "context", None) is not self._context:
            self._do("context", self._api.cuCtxSetCurrent(self._context))
            _THREAD.context = self._context

    # --- memory ---------------------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> int:
        """Memory that the stream's work may use from now on."""
        with self.lock:
            if nbytes > BLOCK:
                return self._allocated(nbytes)
            if not self._blocks:
                first = self._allocated(BLOCK * BLOCKS)
                self._blocks = list(range(first, first + BLOCK * BLOCKS, BLOCK))
                self._small.update(self._blocks)
            return self._blocks.pop()

    def _allocated(self, nbytes: int) -> int:
        what = f"{nbytes / 1e6:.1f} MB"
        try:
            return int(self._do(what, self._api.cuMemAllocAsync(nbytes, self._stream)))
        except OutOfMemory:
            self.wait()  # wait for freed memory that is still in use; then release the memory that the pool holds
            self._do("memory pool", self._api.cuMemPoolTrimTo(self._pool, 0))
            return int(self._do(what, self._api.cuMemAllocAsync(nbytes, self._stream)))

    def free(self, address: int) -> None:
        """Free memory once the enqueued work is done."""
        with self.lock:
            if address in self._small:
                self._blocks.append(address)
            elif self._recording:  # this memory is not part of the recorded work
                self._given_back.append(address)
            else:
                self._api.cuMemFreeAsync(address, self._stream)

    def memory(self) -> tuple[int, int]:
        """Free bytes, including those that the pool holds, and the total."""
        free, total = self._do("memory", self._api.cuMemGetInfo())
        held = self._of_pool(self._api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        return int(free) + held - self.used(), int(total)

    def used(self) -> int:
        """Bytes that this process has allocated."""
        return self._of_pool(self._api.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT)

    def _of_pool(self, attribute: Any) -> int:
        return int(self._do("memory pool", self._api.cuMemPoolGetAttribute(self._pool, attribute)))

    def pinned(self, nbytes: int) -> np.ndarray:
        """Memory of the host that the GPU reads and writes by itself, at the same address."""
        address = int(self._do("pinned memory", self._api.cuMemHostAlloc(max(nbytes, 1), MAPPED)))
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def unpin(self, memory: np.ndarray) -> None:
        """Give pinned memory back once the enqueued work is done: the host waits for it, but not while work is recorded."""
        with self.lock:
            if self._recording:
                self._unpinned.append(memory)  # waiting would end the recording with an error
            else:
                self.wait()
                self._api.cuMemFreeHost(memory.ctypes.data)

    # --- copies ---------------------------------------------------------------------------------------------------------------

    def upload(self, target: int, source: np.ndarray) -> None:
        """From the host, in order with all other work. The source may change when this returns."""
        with self.lock:
            self._do("copy", self._api.cuMemcpyHtoDAsync(target, source.ctypes.data, source.nbytes, self._stream))

    def upload_beside(self, target: int, source: np.ndarray, after: Any = None) -> Any:
        """Copy from pinned memory, concurrently with other work but after an event; returns the event of its completion."""
        if after is not None:
            self._do("copy", self._api.cuStreamWaitEvent(self._copies, after.handle, 0))
        self._do("copy", self._api.cuMemcpyHtoDAsync(target, source.ctypes.data, source.nbytes, self._copies))
        return self._mark(self._copies)

    def download(self, target: np.ndarray, source: int) -> None:
        """To the host; waits for all work before it."""
        with self.lock:
            self._do("copy", self._api.cuMemcpyDtoHAsync(target.ctypes.data, source, target.nbytes, self._stream))
            self.wait()

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """From GPU memory to GPU memory."""
        with self.lock:
            self._do("copy", self._api.cuMemcpyDtoDAsync(target, source, nbytes, self._stream))

    def clear(self, target: int, nbytes: int, beside: bool = False) -> None:
        """Fill memory with zeros."""
        with self.lock:
            self._do("clear", self._api.cuMemsetD8Async(target, 0, nbytes, self._beside if beside else self._stream))

    # --- kernels --------------------------------------------------------------------------------------------------------------

    def load(self, code: bytes, symbol: str, shared: int) -> Any:
        """A kernel of compiled code, ready to be launched with this many bytes of shared memory."""
        module = self._do("code", self._api.cuModuleLoadData(code))
        function = self._do("code", self._api.cuModuleGetFunction(module, symbol.encode()))
        if shared > 48 << 10:
            kind = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._do("shared memory", self._api.cuFuncSetAttribute(function, kind, shared))
        return function

    def launch(
        self, function: Any, programs: int, threads: int, shared: int, arguments: Sequence[int], beside: bool = False
    ) -> None:
        """Start a kernel on pointers."""
        stream = self._beside if beside else self._stream
        with self.lock:
            count = len(arguments) + HIDDEN
            values = (ctypes.c_uint64 * count)(*arguments)
            first = ctypes.addressof(values)
            places = (ctypes.c_uint64 * count)(*range(first, first + 8 * count, 8))
            self._do(
                "launch",
                self._api.cuLaunchKernel(
                    function, programs, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(places), 0
                ),
            )

    # --- work beside the stream -------------------------------------------------------------------------------------------------

    def open_beside(self) -> None:
        """Create the stream for concurrent work. It has priority where both have kernels to start: other processes wait for communication."""
        if self._beside is None:
            _, greatest = self._do("stream", self._api.cuCtxGetStreamPriorityRange())
            flags = self._api.CUstream_flags.CU_STREAM_NON_BLOCKING
            self._beside = self._do("stream", self._api.cuStreamCreateWithPriority(flags, greatest))

    @property
    def beside(self) -> int:
        """The stream for concurrent work."""
        return int(self._beside)

    def branch(self) -> None:
        """Work enqueued on the concurrent stream from now on starts after all work enqueued on the main stream so far."""
        event = self._mark(self._stream, NO_TIMING)
        self._do("event", self._api.cuStreamWaitEvent(self._beside, event.handle, 0))

    def mark_beside(self) -> Any:
        """An event: the work enqueued on the concurrent stream so far is done."""
        return self._mark(self._beside, NO_TIMING)

    # --- graphs and waiting -----------------------------------------------------------------------------------------------------

    def record(self, enqueue: Callable[[], None]) -> Any:
        """A CUDA graph of the work that `enqueue` enqueues, which is recorded, not executed. Garbage collection is paused meanwhile: plans
        of the vendor's libraries free memory and unload code when they are deleted, which would end the recording with an error.
        """
        with self.lock, gc_paused:
            self._recording = True
            try:
                graph = self._recorded(enqueue)
            finally:
                self._recording = False
                while self._given_back:
                    self.free(self._given_back.pop())
                while self._unpinned:
                    self.unpin(self._unpinned.pop())
            try:
                self._memsets.replace(graph)
                return self._do("recording", self._api.cuGraphInstantiate(graph, 0))
            finally:
                self._api.cuGraphDestroy(graph)

    def _recorded(self, enqueue: Callable[[], None]) -> Any:
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._do("recording", self._api.cuStreamBeginCapture(self._stream, mode))
        try:
            enqueue()
        except BaseException:
            self._api.cuStreamEndCapture(self._stream)
            raise
        return self._do("recording", self._api.cuStreamEndCapture(self._stream))

    def replay(self, graph: Any) -> None:
        answer = self._api.cuGraphLaunch(graph, self._stream)
        if answer[0]:  # small programs wait for the host: no call is made for a success
            self._do("replay", answer)

    def forget(self, graph: Any) -> None:
        """Give a recorded graph back."""
        with self.lock:
            self._api.cuGraphExecDestroy(graph)

    def mark(self) -> Any:
        """An event: the work so far is done."""
        return self._mark(self._stream)

    def _mark(self, stream: Any, flags: int = 0) -> Any:
        event = _Event(self._api, self._do("event", self._api.cuEventCreate(flags)))
        self._do("event", self._api.cuEventRecord(event.handle, stream))
        return event

    @property
    def is_recording(self) -> bool:
        """Whether work is recorded at present. The lock is held."""
        return self._recording

    def is_done(self, event: Any) -> bool:
        """Whether an event has happened."""
        [code] = self._api.cuEventQuery(event.handle)
        if code == self._api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        self._do("event", (code, None))
        return True

    def precede(self, stream: int) -> None:
        """Work enqueued on the stream of another library from now on starts after all of our work so far."""
        event = self._mark(self._stream, NO_TIMING)
        self._do("event", self._api.cuStreamWaitEvent(self._api.CUstream(stream), event.handle, 0))

    def follow(self, stream: int) -> None:
        """Our work from now on starts after all work so far on the stream of another library. A stream other than the default one may have
        been destroyed meanwhile: then the host waits for everything.
        """
        if stream == LEGACY_STREAM:
            self.after(self._mark(self._api.CUstream(stream), NO_TIMING))
        else:
            self._do("waiting", self._api.cuCtxSynchronize())

    def after(self, event: Any) -> None:
        """Work from now on starts after an event."""
        with self.lock:
            self._do("event", self._api.cuStreamWaitEvent(self._stream, event.handle, 0))

    def wait_for(self, event: Any) -> None:
        """Wait on the host until an event has happened."""
        self._do("waiting", self._api.cuEventSynchronize(event.handle))

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two events that have happened."""
        return 1e-3 * float(self._do("time", self._api.cuEventElapsedTime(begin.handle, end.handle)))

    def wait(self) -> None:
        """Wait on the host until all work is done."""
        self._do("waiting", self._api.cuStreamSynchronize(self._stream))


class _Event:
    """An event of the driver, destroyed when nothing refers to it."""

    def __init__(self, api: Any, handle: Any) -> None:
        self._api, self.handle = api, handle

    def __del__(self) -> None:
        self._api.cuEventDestroy(self.handle)


_THREAD = threading.local()
