"""The devices `cuda`, `cuda:1`, ...: NVIDIA GPUs. A compiled program is one recorded graph of launches.

Graphs that recur, or that are very large, run compiled. One that occurs once, such as the initialization of parameters, is computed on the
host: compiling kernels for it would take longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from ...compiler.gpu.program import LOWERINGS, gpu_program, library_specs
from ...compiler.gpu.vendor.specs import filter_order
from ...compiler.ir.program import KernelProgram
from ...compiler.ir.storage import nbytes
from ...dtypes import DType
from ...errors import UserError
from ...graph.graph import Graph, close
from ...graph.node import Node, Op, dependencies
from ...knobs import GPU_ALGORITHMS
from ...mesh.world import World, world
from ...options import CompileOptions
from ...timeline import recorded
from .. import dlpack
from ..compiling_device import CompilingDevice, structure
from ..cpu import cpu
from ..device import Buffer, Device, NodeProgram
from ..dlpack import DLDevice
from ..facts import Facts, Health
from ..native import work
from ..reference import compute
from .driver import INSTALL, Gpu, gpu_count
from .exchange import Exchange, checked_stream
from .executable import CudaExecutable, GpuContext
from .health import health
from .libraries import Libraries
from .memory import DeviceArray, DeviceMemory, uploaded

AHEAD = 8  # steps that the host may be ahead of the GPU
HUGE = 10_000_000_000  # operations: with more, a program is never computed on the host
FAR = 1 << 28  # bytes: with more, a program is never computed on the host, because of the copies
PACKAGES = ("cuda-bindings", "triton", "nvidia-cudnn-frontend", "nvmath-python", "nccl4py")


class CudaDevice(CompilingDevice):
    """One GPU."""

    ignored_settings = frozenset({"threads", "winograd", "optimize"})  # of the CPU
    is_accelerator = True
    compiles_collectives = True  # NCCL connects the GPUs, and not what connects the hosts
    conv_algorithms = GPU_ALGORITHMS
    measures_algorithms = True
    orders_constants = True  # the libraries read filters in no other order, and it costs one copy for many calls

    def __init__(self, gpu: Gpu, name: str, libraries: Libraries | None = None) -> None:
        super().__init__()
        self.name, self.gpu = name, gpu
        self.context = GpuContext(gpu, libraries)
        self._begun: deque[Any] = deque()  # the ends of steps, as events
        self.exchange, self.dlpack_device = Exchange(self, gpu), (dlpack.CUDA, gpu.number)

    @property
    def compute_capability(self) -> int:
        return self.gpu.capability

    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        self.gpu.enter()
        return Buffer(self, array.shape, dtype, uploaded(self.gpu, array, dtype))

    def get(self, buffer: Buffer) -> np.ndarray:
        with self.gpu.lock, recorded("wait for a result", "wait"):
            array: np.ndarray = buffer.content.numpy()
            self.exchange.settle()
            self.context.check()
        array.flags.writeable = False
        return array

    def can_compile(self, op: Op) -> bool:
        return LOWERINGS.can_compile(op)

    def is_large(self, program: NodeProgram) -> bool:
        ends = {*program.wanted, *(i for n in program.order for i in dependencies(n) if i.value is not None)}
        return work(program.order) >= HUGE or sum(map(nbytes, ends)) >= FAR

    def interpret(self, program: NodeProgram) -> list[Buffer]:
        """On the host: see the head of this file."""
        can_compile = cpu.is_large(program) and all(cpu.can_compile(node.op) for node in program.order)
        found = structure(program) if can_compile else None
        if found is None:
            return self._by_definition(program)
        native = cpu.executable(close(found[1], program.wanted), {}, cpu.compile_options(), frozenset())
        held = [native.argument(i, leaf.value) for i, leaf in enumerate(found[1]) if isinstance(leaf.value, Buffer)]
        contents = native.call([address for _, address in held])
        return [self._kept(node, content) for node, content in zip(program.wanted, contents, strict=True)]

    def _by_definition(self, program: NodeProgram) -> list[Buffer]:
        known: dict[Node, Any] = {}
        with np.errstate(all="ignore"):
            for node in program.order:
                inputs = [known[i] if i in known else _host(i) for i in dependencies(node)]
                known[node] = compute(node, inputs)
        return [self._kept(node, known[node]) for node in program.wanted]

    def _kept(self, node: Node, value: Any) -> Buffer:
        if not isinstance(value, tuple):
            return self.put(value, node.dtype)
        parts = tuple(self.put(v, t.dtype).content for v, t in zip(value, node.outputs, strict=True))
        return Buffer(self, node.shape, node.dtype, parts)

    # --- compiled programs ------------------------------------------------------------------------------------------------------

    def executable(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> CudaExecutable:
        self.gpu.enter()
        return CudaExecutable(self.context, graph, updates, options, constants)

    def planned_program(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> KernelProgram:
        libraries = self.context.libraries
        if libraries is None:
            return gpu_program(graph, updates, options, constants)
        guess, compressed_bytes = libraries.choices.guess, libraries.compressed_bytes
        return gpu_program(graph, updates, options, constants, guess, semi_sparse=compressed_bytes)

    def planned(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> Facts:
        program, libraries = self.planned_program(graph, updates, options, constants), self.context.libraries
        memory = program.memory
        self.gpu.enter()
        workspace = 0 if libraries is None else max(map(libraries.planned_workspace, library_specs(program)), default=0)
        return Facts(memory.arena, memory.kept, memory.recomputed, workspace)

    def filter_order(self, rank: int) -> tuple[int, ...]:
        """The order that the libraries require, which is also that of images for tensor cores."""
        return filter_order(rank)

    def memory(self, buffer: Buffer, order: tuple[int, ...] | None) -> DeviceMemory:
        content = buffer.content
        if isinstance(content, DeviceArray) and content.memory.gpu is self.gpu and content.order == order:
            return content.memory
        array = buffer.device.get(buffer)
        return uploaded(self.gpu, array if order is None else array.transpose(order), buffer.dtype).memory

    def copied(self, buffer: Buffer, order: tuple[int, ...] | None) -> tuple[DeviceMemory, DeviceArray]:
        self.gpu.enter()
        memory = self.memory(buffer, order)
        if isinstance(buffer.content, DeviceArray) and memory is buffer.content.memory:
            memory = DeviceMemory(self.gpu, buffer.nbytes)
            if buffer.nbytes:
                self.gpu.copy(memory.address, buffer.content.memory.address, buffer.nbytes)
        return memory, DeviceArray(memory, buffer.shape, buffer.dtype, order)

    def copied_to(self, buffer: Buffer, order: tuple[int, ...] | None, memory: DeviceMemory) -> DeviceArray | None:
        if memory.nbytes != buffer.nbytes:
            return None
        self.gpu.enter()
        source = self.memory(buffer, order)
        if buffer.nbytes:
            self.gpu.copy(memory.address, source.address, buffer.nbytes)
        return DeviceArray(memory, buffer.shape, buffer.dtype, order)

    def owned(self, buffer: Buffer) -> DeviceMemory | None:
        content = buffer.content
        is_whole = isinstance(content, DeviceArray) and content.order is None and type(content.memory) is DeviceMemory
        return content.memory if is_whole else None

    def address(self, memory: DeviceMemory) -> int:
        return memory.address

    # --- other libraries ------------------------------------------------------------------------------------------------------

    def from_dlpack(self, source: Any, copy: bool | None, protect: bool) -> Buffer:
        return self.exchange.imported(source, copy, protect)

    def to_dlpack(
        self,
        buffer: Buffer,
        stream: Any,
        max_version: tuple[int, int] | None,
        dl_device: DLDevice | None,
        copy: bool | None,
    ) -> Any:
        if dl_device is not None and tuple(dl_device) != self.dlpack_device:
            if copy is False:
                raise BufferError(f"the memory of {self.name} is not that of the device {tuple(dl_device)}")
            return super().to_dlpack(buffer, None, max_version, dl_device, True)
        checked_stream(stream)
        content = buffer.content if copy is False else self.copied(buffer, buffer.content.order)[1]
        return self.exchange.exported(content, stream, max_version, is_copied=copy is not False)

    # --- what it is -----------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until the GPU has done all enqueued work, and raise its errors."""
        with self.gpu.lock:
            self.gpu.enter()
            self.gpu.wait()
            self.exchange.settle()
            self.context.check()

    def keep_up(self) -> None:
        """The host is faster than the GPU: without this it would be a thousand steps ahead, and its progress reports would be wrong."""
        with self.gpu.lock:
            self.gpu.enter()
            self.exchange.settle()
            self._begun.append(self.gpu.mark())
            if len(self._begun) > AHEAD:
                self.gpu.wait_for(self._begun.popleft())
            self.context.communicators.check()

    def free_memory(self) -> int:
        self.gpu.enter()
        return self.gpu.memory()[0] + self.context.spare

    def allocated_memory(self) -> int:
        self.gpu.enter()
        return self.gpu.used()

    def release_arenas(self) -> None:
        with self.gpu.lock:
            self.gpu.enter()
            self.context.release()

    def about(self) -> str:
        self.gpu.enter()
        free, total = self.gpu.memory()
        capability = f"{self.gpu.capability // 10}.{self.gpu.capability % 10}"
        return (
            f"{self.gpu.name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, compute capability {capability}, "
            f"driver for CUDA {self.gpu.driver_version}, {', '.join(_versions())}"
        )

    def health(self) -> Health | None:
        return health(self.bus())

    def bus(self) -> str:
        return self.gpu.bus()

    def __repr__(self) -> str:
        return f"weft.device({self.name!r}: {self.about()})"


def _host(node: Node) -> Any:
    """The value of a node on the host: an array, or a tuple of them."""
    value = node.value
    assert isinstance(value, Buffer)
    if isinstance(value.content, tuple):
        return tuple(part.numpy() if isinstance(part, DeviceArray) else part for part in value.content)
    return value.device.get(value)


def _versions() -> list[str]:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            pass
    return found


_found: list[Device] = []


def find() -> list[Device]:
    """All GPUs of this machine, opened; a UserError says why there are none. Of processes that work together, each has one."""
    if not _found:
        count = gpu_count()
        if not count:
            raise UserError("cuda", "no NVIDIA GPU is visible: see nvidia-smi and CUDA_VISIBLE_DEVICES.")
        try:
            version("triton")
        except PackageNotFoundError:
            raise UserError("cuda", f"the package triton is missing. {INSTALL}") from None
        for number in [own_gpu(world(), count)] if world().size > 1 else range(count):
            gpu = Gpu(number)
            _found.append(CudaDevice(gpu, f"cuda:{len(_found)}" if _found else "cuda", Libraries(gpu)))
    return list(_found)


def own_gpu(me: World, count: int) -> int:
    """The number of the GPU of a process among the `count` that are visible to it: its local rank, if several are visible.

    >>> own_gpu(World(rank=5, size=8, local_rank=1), 4)
    1
    """
    if count == 1:
        return 0
    if me.local_rank is None:
        return me.rank % count
    if me.local_rank >= count:
        raise UserError(
            "cuda", f"each process needs a GPU: there are {count}, and rank {me.rank} is number {me.local_rank} on this machine. "
            f"Start {count} processes or fewer on it.",
        )  # fmt: skip
    return me.local_rank


def synchronize() -> None:
    """Wait until every GPU in use has done all enqueued work."""
    for device in _found:
        assert isinstance(device, CudaDevice)
        device.wait()
