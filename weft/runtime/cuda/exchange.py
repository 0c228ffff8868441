"""DLPack on GPUs: tensors that share memory with those of other libraries, in both directions.

Work on a GPU is asynchronous, so memory is handed over in stream order. The library that exports makes the stream of the importing one
wait for what it has written. For the release of memory there is no such protocol: imported memory is released when our work that may read
it is done, and exported memory is reused only after the other library's stream has reached the same point.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...compiler.gpu.compile import ALIGNED
from ...dtypes import DType, as_dtype
from ...errors import UserError
from ...graph.graph import Graph, close
from ...graph.node import OPS, Node, Shape, Type, make, placeholder
from .. import dlpack
from ..device import Buffer, Device, Executable
from .driver import LEGACY_STREAM, Gpu
from .memory import DeviceArray, DeviceMemory

REMEMBERED = 16  # programs that copy strided arrays
NO_WAIT = -1  # the stream of a consumer that synchronizes by itself


class ForeignMemory(DeviceMemory):
    """Memory of another library. The array of NumPy holds it, and has its address; its elements are the GPU's."""

    __slots__ = ("_array", "_exchange")

    def __init__(self, exchange: Exchange, array: np.ndarray) -> None:
        self.gpu, self.nbytes, self.address = exchange.gpu, array.nbytes, array.ctypes.data
        self._array, self._exchange = array, exchange

    def __del__(self) -> None:
        try:
            self._exchange.give_back(self._array)
        except Exception:  # the process ends: the driver may be gone
            pass


class LentMemory(dlpack.DeviceView):
    """Our memory while another library refers to it."""

    def __init__(self, exchange: Exchange, content: DeviceArray, stream: int) -> None:
        super().__init__(content.memory.address, content.shape, _strides(content), content.dtype.numpy)
        self._exchange, self._memory, self._stream = exchange, content.memory, stream

    def __del__(self) -> None:
        try:
            self._exchange.take_back(self._memory, self._stream)
        except Exception:  # as above
            pass


class Exchange:
    """Imports and exports of one GPU."""

    def __init__(self, device: Device, gpu: Gpu) -> None:
        self.device, self.gpu = device, gpu
        self._borrowed: deque[tuple[Any, np.ndarray]] = (
            deque()
        )  # to release, with the event of the completion of our work
        self._lent: deque[tuple[DeviceMemory, int]] = (
            deque()
        )  # released by the other library, with the stream that may still read it
        self._copies: OrderedDict[tuple[Shape, Shape, DType], Executable] = OrderedDict()

    # --- imports ---------------------------------------------------------------------------------------------------------------

    def imported(self, source: Any, copy: bool | None, protect: bool) -> Buffer:
        """The array of another library; see `Device.from_dlpack`."""
        with self.gpu.lock:
            self.gpu.enter()
            self.settle()
            array, is_read_only = dlpack.read_view(source, self.gpu.stream, False if copy is False else None)
            dtype = as_dtype(array.dtype, "from_dlpack")
            reason = _why_not_shared(array)
            if copy is False and reason:
                raise UserError("from_dlpack", f"copy=False, but a copy is needed: {reason}.")
            memory = ForeignMemory(self, array)
            if reason or copy or (protect and not is_read_only):
                content = self._copied(array, memory, dtype)
            else:
                content = DeviceArray(memory, array.shape, dtype)
            return Buffer(self.device, array.shape, dtype, content)

    def _copied(self, array: np.ndarray, memory: DeviceMemory, dtype: DType) -> DeviceArray:
        """The array in new memory, contiguous and aligned."""
        if array.flags.c_contiguous:
            return DeviceArray(self._copied_bytes(memory, array.nbytes), array.shape, dtype)
        strides = tuple(s // dtype.itemsize for s in array.strides)
        program = self._strided_copy(array.shape, strides, dtype)
        if memory.address % ALIGNED:
            steps = sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
            memory = self._copied_bytes(memory, dtype.itemsize * (1 + steps))
        found: DeviceArray = program.call([memory.address])[0]
        return found

    def _copied_bytes(self, memory: DeviceMemory, nbytes: int) -> DeviceMemory:
        made = DeviceMemory(self.gpu, nbytes)
        if nbytes:
            self.gpu.copy(made.address, memory.address, nbytes)
        return made

    def _strided_copy(self, shape: Shape, strides: Shape, dtype: DType) -> Executable:
        """A program that copies a strided array to a contiguous one."""
        key = shape, strides, dtype
        if key not in self._copies:
            graph = strided_copy(shape, strides, dtype)
            self._copies[key] = self.device.executable(graph, {}, self.device.compile_options(), frozenset())
            if len(self._copies) > REMEMBERED:
                self._copies.popitem(last=False)
        self._copies.move_to_end(key)
        return self._copies[key]

    def give_back(self, array: np.ndarray) -> None:
        """Free memory of another library, once our work that was enqueued so far is done."""
        with self.gpu.lock:
            self.gpu.enter()
            self._borrowed.append((None, array))
            self.settle()

    # --- exports ---------------------------------------------------------------------------------------------------------------

    def exported(self, content: DeviceArray, stream: Any, max_version: tuple[int, int] | None, is_copied: bool) -> Any:
        """A capsule with this memory, which the work of a stream may use from now on."""
        stream = checked_stream(stream)
        with self.gpu.lock:
            self.gpu.enter()
            self.settle()
            view = LentMemory(self, content, stream)
            capsule = dlpack.export_view(view, self.device.dlpack_device, max_version, is_copied=is_copied)
            if stream != NO_WAIT:
                self.gpu.precede(stream)
            return capsule

    def take_back(self, memory: DeviceMemory, stream: int) -> None:
        """The other library no longer uses this memory: our work waits for the work of its stream."""
        with self.gpu.lock:
            self.gpu.enter()
            self._lent.append((memory, stream))
            self.settle()

    def settle(self) -> None:
        """Release memory that our work no longer reads, unless work is being recorded. Called often: it queries one event, and never waits."""
        gpu = self.gpu
        with gpu.lock:
            if gpu.is_recording:
                return
            while self._lent:
                gpu.follow(self._lent[0][1])
                self._lent.popleft()  # only now: if waiting fails, its memory must not be used again
            for number, (event, array) in enumerate(self._borrowed):
                if event is None:
                    self._borrowed[number] = gpu.mark(), array
            while self._borrowed and gpu.is_done(self._borrowed[0][0]):
                self._borrowed.popleft()


def checked_stream(stream: Any) -> int:
    """The stream of a consumer, as the array API standard numbers them: None and 1 are the legacy default stream."""
    if stream is None:
        return LEGACY_STREAM
    if isinstance(stream, bool) or not isinstance(stream, int) or stream == 0 or stream < NO_WAIT:
        raise UserError(
            "dlpack",
            "stream must be None, -1 (no synchronization), 1 (the legacy default stream), 2 (the per-thread default stream) or the "
            f"address of a CUDA stream, got {stream!r}.",
        )
    return stream


def _why_not_shared(array: np.ndarray) -> str:
    if not array.nbytes:
        return ""
    if not array.flags.c_contiguous:
        return f"the array has shape {array.shape} and strides {array.strides} in bytes, and is not contiguous"
    return "" if array.ctypes.data % ALIGNED == 0 else f"its memory does not begin at a multiple of {ALIGNED} bytes"


def _strides(content: DeviceArray) -> tuple[int, ...]:
    """In bytes, of each axis."""
    order = range(len(content.shape)) if content.order is None else content.order
    strides, step = [0] * len(content.shape), content.dtype.itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= max(content.shape[axis], 1)
    return tuple(strides)


# --- strided arrays -------------------------------------------------------------------------------------------------------------------


def strided_copy(shape: Shape, strides: Shape, dtype: DType) -> Graph:
    """A graph from the memory of a strided array to the array: a slice of a contiguous one, its axes in another order.

    Strides are counted in elements. Its input may be larger than the memory; only elements of the array are read.
    """
    moving = sorted((a for a, n in enumerate(shape) if n > 1 and strides[a]), key=lambda a: -strides[a])
    counts, steps = [shape[a] for a in moving], [strides[a] for a in moving]
    inner = [*steps[1:], 1][: len(steps)]
    overlaps = any(
        step % below or step < below * n for step, below, n in zip(steps, inner, [*counts[1:], 1], strict=False)
    )
    if overlaps or min(strides) < 0:
        raise UserError(
            "from_dlpack",
            f"an array whose elements are a slice of contiguous memory is required, got shape {shape} and strides {strides}. Make a "
            "contiguous copy of it first: x.contiguous() in PyTorch, cupy.ascontiguousarray(x).",
        )
    # Axis i of the memory has as many elements as steps of it fit into one step of the axis before; the last has those of one step.
    base = (*(counts[:1] or [1]), *(step // below for step, below in zip(steps, inner, strict=True)))[: len(counts) + 1]
    found = placeholder(0, Type(base, dtype))
    node = make(OPS["slice"], (found,), ((0,) * len(base), (*counts, 1), (1,) * len(base)))
    node = make(OPS["reshape"], (node,), (tuple(counts),))
    node = make(OPS["permute"], (node,), (tuple(int(a) for a in np.argsort(moving)),))
    with_ones = tuple(n if a in moving else 1 for a, n in enumerate(shape))
    return close([found], [_expanded(make(OPS["reshape"], (node,), (with_ones,)), shape)])


def _expanded(node: Node, shape: Sequence[int]) -> Node:
    return node if node.shape == tuple(shape) else make(OPS["expand"], (node,), (tuple(shape),))
