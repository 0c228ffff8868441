"""GPU memory: freed when nothing refers to it, and filled from the host while other work runs."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...dtypes import DType
from ...graph.node import Shape
from .driver import Gpu, OutOfMemory

FILLED = 4e12  # bytes per second that a fast GPU fills with zeros
LARGE = 1 << 26  # bytes: programs keep no buffers of this size for arguments and results
SMALL = 1 << 16  # bytes: the driver stages such small copies by itself, and returns at once


class DeviceMemory:
    """A block of GPU memory."""

    __slots__ = ("__weakref__", "address", "gpu", "nbytes")

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.gpu, self.nbytes = gpu, nbytes
        self.address = 0
        self.address = gpu.allocate(nbytes)

    def __del__(self) -> None:
        if self.address:
            try:
                self.gpu.enter()
                self.gpu.free(self.address)
            except Exception:  # the process ends: the driver may be gone, and all that this file imports
                pass


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A tensor in the memory of a GPU. `order`: the order of its axes in memory, unless it is the default."""

    memory: DeviceMemory
    shape: Shape
    dtype: DType
    order: tuple[int, ...] | None = None

    def numpy(self) -> np.ndarray:
        """The values, copied to the host."""
        shape = self.shape if self.order is None else tuple(self.shape[a] for a in self.order)
        array = np.empty(shape, self.dtype.numpy)
        gpu = self.memory.gpu
        gpu.enter()
        if array.nbytes:
            gpu.download(array, self.memory.address)
        return array if self.order is None else array.transpose(np.argsort(self.order))


def empty_array(gpu: Gpu, shape: Shape, dtype: DType) -> DeviceArray:
    """A tensor in new memory, not initialized."""
    nbytes = prod(shape) * dtype.itemsize
    try:
        return DeviceArray(DeviceMemory(gpu, nbytes), shape, dtype)
    except OutOfMemory:
        free, total = gpu.memory()
        raise OutOfMemory(
            "cuda",
            f"the GPU has no room for a tensor of {nbytes / 1e9:.2f} GB: {free / 1e9:.2f} of {total / 1e9:.2f} GB are "
            "free. Drop tensors that are not needed, or use smaller batches.",
        ) from None


def uploaded(gpu: Gpu, array: np.ndarray, dtype: DType) -> DeviceArray:
    """The array's values in new memory of the GPU."""
    made = empty_array(gpu, array.shape, dtype)
    if array.nbytes:
        gpu.upload(made.memory.address, np.ascontiguousarray(array))
    return made


class DoubleBuffer:
    """Double buffering for an argument that is uploaded with every call: one buffer is filled while the other is read."""

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.gpu, self.nbytes = gpu, nbytes
        self._buffers: list[_UploadBuffer] = []
        self._turn = 0
        self._fixed: DeviceMemory | None = None

    def fixed(self) -> int:
        """The address of a third buffer, for arguments that are on the GPU already."""
        if self._fixed is None:
            self._fixed = DeviceMemory(self.gpu, self.nbytes)
        return self._fixed.address

    def fill(self, array: np.ndarray) -> int:
        """Copy a contiguous array to the GPU concurrently with its work; returns the address. Call `done` after enqueuing the work that
        reads it."""
        if len(self._buffers) < 2:
            self._buffers.append(_UploadBuffer(self.gpu, self.nbytes))
        self._turn = (self._turn + 1) % len(self._buffers)
        now = self._buffers[self._turn]
        if now.host is None:
            self.gpu.upload(now.memory.address, array)
            return now.memory.address
        if now.filled is not None:
            self.gpu.wait_for(now.filled)  # the pinned memory of this buffer is still being copied
        now.host.array[:] = array.reshape(-1).view(np.uint8)
        now.filled = self.gpu.upload_beside(now.memory.address, now.host.array, now.read)
        self.gpu.after(now.filled)
        return now.memory.address

    def done(self) -> None:
        """The work that reads the buffer filled last has been enqueued."""
        if self._buffers[self._turn].host is not None:
            self._buffers[self._turn].read = self.gpu.mark()


class _UploadBuffer:
    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self.memory = DeviceMemory(gpu, nbytes)
        self.host = PinnedMemory(gpu, nbytes) if nbytes > SMALL else None
        self.filled: Any = None
        # New memory may have been freed by work that still runs: the first copy waits for that work, too.
        self.read: Any = gpu.mark() if self.host is not None else None


class PinnedMemory:
    """Page-locked host memory that the GPU reads and writes at the same address."""

    def __init__(self, gpu: Gpu, nbytes: int) -> None:
        self._gpu = gpu
        self.array = gpu.pinned(nbytes)
        self.address = int(self.array.ctypes.data)

    def __del__(self) -> None:
        if hasattr(self, "array"):
            try:
                self._gpu.enter()
                self._gpu.unpin(self.array)
            except Exception:  # as above
                pass


def keep_busy(gpu: Gpu, seconds: float) -> None:
    """Keep the GPU busy for some seconds, so that work enqueued meanwhile runs without gaps."""
    size = min(1 << 30, gpu.memory()[0] // 4)
    memory = DeviceMemory(gpu, size)
    for _ in range(1 + int(seconds * FILLED / size)):
        gpu.clear(memory.address, size)
