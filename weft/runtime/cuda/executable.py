"""A compiled program on a GPU: its commands run one by one the first time, are recorded the second time, and replayed as one CUDA graph.

A recorded graph holds addresses. State stays at its address. An argument from the host is copied to one of two buffers, alternately. An
argument on the GPU is read in place if its address is the same as at the last call or if it is large, and copied to a fixed buffer
otherwise. Two sets of result buffers alternate, too. A training loop therefore needs two graphs.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ...compiler.gpu import compile_pool
from ...compiler.gpu.algorithms import choose
from ...compiler.gpu.anchors import is_contraction
from ...compiler.gpu.commands import CompiledCommands
from ...compiler.gpu.program import commands, compiled_commands, error_sites, gpu_passes, gpu_program
from ...compiler.gpu.vendor.claims import Claim
from ...compiler.ir.kernel import Kernel
from ...compiler.ir.program import KernelProgram
from ...compiler.ir.storage import ARENA, KEPT, nbytes
from ...compiler.lowering import has_external_ops
from ...compiler.passes.semi_sparse_products import CompressedBytes
from ...compiler.store import kept
from ...errors import RunError
from ...graph.graph import Graph
from ...graph.node import Node
from ...knobs import knobs
from ...options import CompileOptions
from ...timeline import RECORDING, CallLabel, Timeline, recorded
from ..device import EAGER, Buffer
from ..facts import Facts, GpuRoof, Profile
from .collective_runs import CollectiveRuns
from .command_runner import STATUS, CommandRunner, is_not_once, is_once
from .driver import Gpu, OutOfMemory
from .libraries import Libraries
from .measure import seconds
from .memory import LARGE, DeviceArray, DeviceMemory, DoubleBuffer, PinnedMemory
from .nccl import Communicators
from .profile import gpu_roof, profile
from .results import ResultBuffers
from .stream_times import command_labels, enqueue_recorded, wanted_passes

FORMAT = 2  # of the format on disk; a change invalidates old files
REMEMBERED = 8  # graphs of one program, each for other addresses
MANY_NODES = 200  # of a graph whose kernels are worth starting compiler processes for while it is planned
LARGEST = 3  # the number of tensors that out-of-memory errors name


class GpuContext:
    """What the programs of one GPU share: the driver, its lock, the arena, communicators, and the programs whose errors have not been checked."""

    def __init__(self, gpu: Gpu, libraries: Libraries | None) -> None:
        self.gpu, self.libraries = gpu, libraries
        self._arena, self._workspace = GrowingBuffer(gpu), GrowingBuffer(gpu)
        self.communicators = Communicators(gpu)
        self.unchecked: dict[CudaExecutable, None] = {}
        # Of the addresses of the arena and the workspace: counts up where one of them moves, under the GPU's lock.
        self.generation = 0

    def arena(self, wanted: int) -> int:
        """The address of `wanted` bytes for values that are live during a run only. Runs are sequential, so they share it."""
        self.generation += wanted > self._arena.nbytes
        return self._arena.of(wanted)

    def workspace(self, wanted: int) -> int:
        """The address of `wanted` bytes of workspace for the libraries."""
        self.generation += wanted > self._workspace.nbytes
        return self._workspace.of(wanted)

    @property
    def spare(self) -> int:
        """Bytes that are allocated and that the next program can reuse."""
        return self._arena.nbytes + self._workspace.nbytes

    def release(self) -> None:
        """Free the arena and the workspace; the next run of each program allocates what it needs."""
        self._arena, self._workspace = GrowingBuffer(self.gpu), GrowingBuffer(self.gpu)
        self.generation += 1

    def check(self) -> None:
        """Raise the errors of programs; the GPU must have finished their work."""
        self.communicators.check()
        unchecked, self.unchecked = self.unchecked, {}
        for executable in unchecked:
            executable.check()


class GrowingBuffer:
    """Memory that is reallocated when more bytes are wanted."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._memory: DeviceMemory | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self._memory is None else self._memory.nbytes

    def of(self, wanted: int) -> int:
        """The address of at least `wanted` bytes; 0 if none are wanted."""
        if not wanted:
            return 0
        if self._memory is None or self._memory.nbytes < wanted:
            self._memory = None  # free the old block first
            self._memory = DeviceMemory(self._gpu, wanted)
        return self._memory.address


class CudaExecutable:
    """See the head of this file."""

    label = EAGER

    def __init__(
        self,
        context: GpuContext,
        graph: Graph,
        updates: Mapping[int, int],
        options: CompileOptions,
        constants: frozenset[int],
    ) -> None:
        self.context, self.gpu = context, context.gpu
        self.graph, self.updates, self.options, self.constants = graph, dict(updates), options, constants
        made = self._compiled()
        self.commands, self._decides = made.commands, made.commands.decides
        self._together = CollectiveRuns.of(graph, made.commands, options, context.communicators)
        self.runner = CommandRunner(self.gpu, made, context.libraries, context.communicators)
        self.facts = Facts(made.arena, made.kept, made.recomputed, self.runner.workspace)
        try:
            self._kept = DeviceMemory(self.gpu, made.kept) if made.kept else None
        except OutOfMemory:
            raise OutOfMemory("cuda", self._too_large()) from None
        self._once = any(map(is_once, made.commands.flat))
        self._made = False  # what is kept
        # Kernels write errors, which are rare, to host memory, so that no copy is needed after each run.
        self._status = PinnedMemory(self.gpu, STATUS * (1 + made.statuses))
        self._errors = self._status.array.view(np.int64)
        self._errors[:] = 0
        self._can_fail = made.statuses > 0
        kinds = {i: (o.shape, o.dtype) for i, o in enumerate(graph.outputs) if i not in self.updates}
        self._results = ResultBuffers(self.gpu, kinds, len(graph.outputs))
        # Both ends of the frame, and the generation of addresses that they are of.
        self._reserved, self._shared, self._generation = (0, 0, 0), 0, -1
        self._lanes: dict[int, DoubleBuffer] = {}  # of arguments from the host, by their position
        self._filled: list[DoubleBuffer] = []  # in this call
        self._last: dict[int, int] = {}  # where each argument from the GPU was at the last call
        self._graphs: OrderedDict[tuple[int, ...], Any] = OrderedDict()

    def __del__(self) -> None:
        for graph in getattr(self, "_graphs", {}).values():
            if graph is not None:
                self.gpu.forget(graph)

    @property
    def program(self) -> KernelProgram:
        """Its kernels, calls and memory plan, planned again on demand."""
        libraries = self.context.libraries
        collecting = None if libraries is None else libraries.choices.collecting
        return gpu_program(
            self.graph, self.updates, self.options, self.constants, self._judge, collecting, self._compressed_bytes,
            self.gpu.shared_bytes,
        )  # fmt: skip

    @property
    def _compressed_bytes(self) -> CompressedBytes | None:
        return None if self.context.libraries is None else self.context.libraries.compressed_bytes

    def _judge(self, kernel: Kernel, wanted: Claim) -> bool:
        return self.context.libraries is not None and self.context.libraries.judge(kernel, wanted)

    def _compiled(self) -> CompiledCommands:
        """The program with its kernels compiled, from the disk cache if possible."""
        graph, capability = self.graph, self.gpu.capability
        inputs = f"updates {sorted(self.updates.items())} constants {sorted(self.constants)}"
        libraries = "" if self.context.libraries is None else self.context.libraries.key
        key = f"gpu program {FORMAT} sm_{capability} {self.options.key} {inputs} {libraries}\n{graph.text()}"
        start = time.perf_counter()
        fresh: list[CompiledCommands] = []

        def make() -> bytes:
            with compile_pool.workers_ready() if len(graph.nodes) > MANY_NODES else nullcontext():
                fresh.append(compiled_commands(self.program, lambda sources: _cast(sources, capability)))
            return fresh[0].to_bytes()

        content = make() if knobs.debug >= 3 or has_external_ops(graph) else kept(key, make)
        made = fresh[0] if fresh else CompiledCommands.from_bytes(content)
        if knobs.debug:
            what = f"to {len(made.kernels)} kernels" if fresh else "from the disk"
            count = sum(1 for _ in made.commands.flat)
            _say(f"compiled {len(graph.nodes)} nodes {what}, {count} launches, in {time.perf_counter() - start:.2f} s")
        return made

    # --- introspection -------------------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """On what it runs."""
        return self.gpu.name

    def roof(self) -> GpuRoof:
        """The most that can be had there."""
        return replace(gpu_roof(self.gpu, self.context.libraries), with_tf32=bool(self.options.tf32))

    def sources(self) -> list[str]:
        """The text of every kernel, in Triton, in the order in which they first run."""
        kernels = dict.fromkeys(launch.kernel for launch in commands(self.program).launches)
        return [kernel.text for kernel in kernels]

    def passes(self) -> dict[str, Graph]:
        """Its graph after each pass of the compiler."""
        return gpu_passes(self.graph, self.options, self.updates, self._compressed_bytes)

    def notes(self) -> list[str]:
        """What is not computed as it was asked for, and why."""
        found = [choose(k, False, self._judge, self.options).note for k in self.program.plans if is_contraction(k)]
        return [note for note in found if note]

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace of a product or convolution, in bytes."""
        return max((p.workspace for p in self.program.plans.values()), default=0) + self.runner.workspace

    def seconds(self, inputs: Sequence[int]) -> float:
        """The time of a run on the GPU, on inputs at these addresses. They must not include state, which would change."""
        assert not self.updates
        with self.gpu.lock:
            self.gpu.enter()
            frame = self._frame_of(inputs)
            return seconds(self.gpu, lambda: self._run_commands(frame))

    def profile(self, inputs: Sequence[int], repeats: int | None = None) -> Profile:
        """The time of each of its calls, on inputs at these addresses; they are not changed."""
        with nullcontext() if self._together is None else self._together.run():
            return profile(self, inputs, repeats)

    # --- arguments ------------------------------------------------------------------------------------------------------------

    def argument(self, position: int, given: Buffer | np.ndarray) -> tuple[Any, int]:
        """The memory of an argument, to be held during the call, and its address."""
        node = self.graph.inputs[position]
        if isinstance(given, Buffer):
            content = given.content
            if isinstance(content, DeviceArray) and content.memory.gpu is self.gpu and content.order is None:
                address = content.memory.address
                if address != self._last.get(position):
                    address = self._stable(position, content)
                return content, address
            given = given.device.get(given)
        array = np.ascontiguousarray(given, node.dtype.numpy)
        if not array.nbytes:
            return array, self._status.address  # any address: nothing is read there
        lane = self._lane(position)
        self._filled.append(lane)
        with recorded("copy an argument to the GPU", "copy", bytes=array.nbytes):
            return lane, lane.fill(array)

    def _lane(self, position: int) -> DoubleBuffer:
        if position not in self._lanes:
            self._lanes[position] = DoubleBuffer(self.gpu, nbytes(self.graph.inputs[position]))
        return self._lanes[position]

    def _stable(self, position: int, content: DeviceArray) -> int:
        """The address of an argument that is on the GPU, elsewhere than at the last call. Unless it is large, it is copied to a fixed buffer."""
        address, before = content.memory.address, self._last.get(position)
        self._last[position] = address
        if before is None or content.memory.nbytes >= LARGE:
            return address
        fixed = self._lane(position).fixed()
        self.gpu.copy(fixed, address, content.memory.nbytes)
        return fixed

    # --- running --------------------------------------------------------------------------------------------------------------

    def call(self, inputs: Sequence[int], again: bool = True) -> list[DeviceArray]:
        """Run on inputs at these addresses; new memory with each result. Without `again`, constants are what they were."""
        gpu = self.gpu
        with gpu.lock:  # programs share the arena, so all commands of one are enqueued together
            gpu.enter()
            try:
                frame = self._frame_of(inputs)
            except OutOfMemory:
                raise OutOfMemory("cuda", self._too_large()) from None
            if self._together is None:
                self._put(frame, again)
            else:
                with self._together.run():
                    self._put(frame, again)
            results = self._results.take()
            if self._filled:
                for lane in self._filled:
                    lane.done()
                self._filled.clear()
        return results

    def _frame_of(self, inputs: Sequence[int]) -> tuple[int, ...]:
        if self._generation != self.context.generation:
            self._reserved, self._shared = self.reserved(), self.shared()
            self._generation = self.context.generation
        return (*self._reserved, *inputs, *self._results.addresses(), self._shared)

    def reserved(self) -> tuple[int, int, int]:
        """The first entries of the frame: arena, status, persistent memory."""
        kept = self._kept
        return self.context.arena(self.facts.arena), self._status.address, 0 if kept is None else kept.address

    def shared(self) -> int:
        """The last entry: the libraries' workspace."""
        return self.context.workspace(self.runner.workspace)

    def _put(self, frame: tuple[int, ...], again: bool) -> None:
        """Put a run into the stream."""
        timeline = RECORDING.active
        if timeline is None:
            self._enqueue(frame, again)
        else:
            self._enqueue_recorded(frame, again, timeline)

    def _enqueue(self, frame: tuple[int, ...], again: bool) -> None:
        if self._once and (again or not self._made):
            self.runner.run(self.commands, frame, is_once)
            self._made = True
        graph = self._graphs.get(frame)
        if graph is not None:
            self._graphs.move_to_end(frame)
            self.gpu.replay(graph)
        elif self._decides:
            self._run_commands(frame)
        elif frame not in self._graphs:
            self._run_commands(frame)  # loads code, and raises errors where they occur
            self._remember(frame, None)
        else:
            self._graphs.move_to_end(frame)
            self._graphs[frame] = graph = self.gpu.record(lambda: self._run_commands(frame))
            self.gpu.replay(graph)
        if self._can_fail:
            self.context.unchecked[self] = None

    def _enqueue_recorded(self, frame: tuple[int, ...], again: bool, timeline: Timeline) -> None:
        """The same with an event after every command, and no graph."""
        passes = wanted_passes(self._once, again or not self._made)
        with recorded(f"prepare the trace of {self.label}", "compile"):
            labels = self._labels
        with recorded(self.label, "call"):
            enqueue_recorded(self, labels, frame, passes, timeline)
        self._made = True
        if self._can_fail:
            self.context.unchecked[self] = None

    @cached_property
    def _labels(self) -> list[CallLabel]:
        return command_labels(self)

    def _run_commands(self, frame: tuple[int, ...]) -> None:
        self.runner.run(self.commands, frame, is_not_once if self._once else None)

    def _remember(self, frame: tuple[int, ...], graph: Any) -> None:
        self._graphs[frame] = graph
        if len(self._graphs) > REMEMBERED:
            _, oldest = self._graphs.popitem(last=False)
            if oldest is not None:
                self.gpu.wait()
                self.gpu.forget(oldest)

    # --- errors --------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first error of a run."""
        if not self._errors.any():
            return
        found = self._errors.reshape(-1, 2).copy()
        self._errors[:] = 0
        self._made = False  # the persistent values may be affected
        number = int(np.flatnonzero(found[:, 0])[0])
        where, message, source = error_sites(self.program)[number - 1][int(found[number, 0]) - 1]
        raise RunError(where, message.format(value=int(found[number, 1])), source)  # type: ignore[arg-type]

    def _too_large(self) -> str:
        program = self.program
        free, total = self.gpu.memory()
        arena = {n: s.nbytes for n, s in program.memory.slots.items() if s.base in (ARENA, KEPT)}
        largest = sorted(arena, key=lambda n: -arena[n])[:LARGEST]
        names = ", ".join(f"{n.type} ({arena[n] / 1e9:.2f} GB, {_where(n)})" for n in largest)
        return (
            f"the GPU has no room for this program: {(self.facts.arena + self.facts.kept) / 1e9:.2f} GB live at one time, {free / 1e9:.2f} of "
            f"{total / 1e9:.2f} GB are free. The largest tensors: {names}. Use a smaller batch (accumulate gradients over "
            "several if it must stay large), weft.checkpoint, or precision bfloat16."
        )


def _where(node: Node) -> str:
    return str(node.source) if node.source else node.op.name


def _cast(sources: Sequence[Any], capability: int) -> list[Any]:
    if knobs.debug >= 4:
        for number, source in enumerate(sources):
            _say(f"kernel {number}, {source.programs} programs of {source.warps} warps\n{source.text}")
    return compile_pool.compile_kernels(sources, capability)


def _say(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr)
