"""Native executables: compiled from graphs, cached on disk, run by a team of threads in one native call."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiler import cpu as compiler
from ..compiler.cpu.collective.layout import FAILED
from ..compiler.gc_pause import gc_paused
from ..compiler.host import usable_cores
from ..compiler.ir.frame import ALIGN, FRAME_RESERVED
from ..compiler.lowering import has_external_ops
from ..compiler.thresholds import thresholds
from ..errors import RunError, UserError
from ..graph.graph import Graph
from ..graph.node import Node, Shape
from ..knobs import knobs
from ..options import CompileOptions
from ..records import dataclass
from ..timeline import RECORDING, Timeline, recorded
from .collectives import collectives_of
from .device import EAGER, STATE_LOCK, Buffer
from .facts import Facts, Profile, Roofline
from .profile import linked_functions, profile
from .team import address_of, symbols, team
from .timestamps import TimestampedProgram

if TYPE_CHECKING:
    from llvmlite import ir

    from ..compiler.ir.program import KernelProgram

LARGE = 1 << 24  # operations: programs with more are compiled even if they run only once
TIMED = 5  # runs, to know how long one takes
FORMAT = 2  # version of cached files; a change invalidates old ones


_acquire, _release = STATE_LOCK.acquire, STATE_LOCK.release  # faster than a `with` block


def thread_count() -> int:
    """The number of threads that programs run on."""
    return knobs.threads or usable_cores()


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array as compiled code reads it."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.array(array, order="C")


def content(buffer: Any) -> np.ndarray:
    """The values of a buffer as an array, whatever device they are on."""
    content = buffer.content
    found: np.ndarray = content if type(content) is np.ndarray else buffer.device.get(buffer)
    return found


# Called with memory before a program writes to it: results, the arena, persistent values. Tests fill it with garbage to find reads of
# uninitialized memory.
BEFORE_USE: list[Callable[[np.ndarray], None]] = []


def _empty(shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    try:
        made = np.empty(shape, dtype)
    except (MemoryError, ValueError):
        raise RunError("run", f"not enough memory for a result of type {dtype}{list(shape)}.") from None
    for prepare in BEFORE_USE:
        prepare(made)
    return made


def fitting(graph: Graph, options: CompileOptions) -> CompileOptions:
    """The options for this graph: a single thread if it is too small to share."""
    return options if work(graph.nodes) > thresholds.threaded_work else replace(options, threads=1)


def work(nodes: Iterable[Node]) -> int:
    """An estimate of the operations that these nodes take."""
    total = 0
    for node in nodes:
        if node.op.kind == "control":
            return LARGE
        if node.op.flops is not None:
            total += node.op.flops(node) // 2  # a multiplication and an addition are one operation here
        else:
            total += sum(prod(result.shape) for result in node.outputs or (node.type,))
    return total


@dataclass(frozen=True)
class NativeFacts(Facts):
    """What is needed to run a program in addition to its code."""

    symbols: tuple[str, ...] = ()  # names of the library functions that it calls
    collectives: str = ""  # the order of its collectives, as numbers of nodes


class NativeExecutable:
    """A program in memory. It is run on addresses: of its inputs, then of its outputs."""

    label = EAGER

    def __init__(
        self,
        graph: Graph,
        updates: Mapping[int, int],
        options: CompileOptions,
        constants: frozenset[int] = frozenset(),
    ) -> None:
        self.describe(graph, updates, options, constants)
        threads = options.threads
        with self._as_made():
            code, facts = _code(graph, self.updates, options, constants)
        self.facts = facts
        self._collective_order = facts.collectives
        self._kept: np.ndarray | None = None
        self._made = False  # what is kept
        self._collectives = collectives_of(graph)
        if self._collectives is not None and not self._collectives.mesh.table_address:
            raise UserError("mesh", "collectives of one process stay in programs for GPUs only, got one for the CPU.")
        linked = linked_functions(facts.symbols, bool(options.optimize), self._collectives)
        self._loaded = compiler.engine.Loaded(code, [*symbols(), *linked])
        self._main = self._loaded.address("main")
        self._team = team(threads)
        # An error code, its value, whether persistent values must be computed, and the address of the collectives' mesh.
        self._status = (ctypes.c_int64 * 4)(0, 0, 1, self._collectives.mesh.table_address if self._collectives else 0)
        count = len(graph.inputs) + len(graph.outputs)
        self._frame = (ctypes.c_int64 * (FRAME_RESERVED + count))()
        self._frame_address = ctypes.addressof(self._frame)
        self._frame[1] = ctypes.addressof(self._status)
        self._fill = struct.Struct(f"={count}q").pack_into
        self._arena = _arenas.setdefault(threads, _Arena())
        self._observed = knobs.debug < 2
        # The type of each output's memory; None for outputs that replace an input.
        self._new_outputs = [None if i in updates else (o.shape, o.dtype.numpy) for i, o in enumerate(graph.outputs)]

    def describe(
        self, graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
    ) -> None:
        """Set what it was made of."""
        self.graph, self.updates, self.options = graph, dict(updates), options
        self.threads = options.threads
        self._timestamped: TimestampedProgram | None = None
        self._times = compiler.conv_choice.times_of(graph)
        self.constants = constants  # inputs that rarely change: values prepared from them are kept
        self._place = address_of()

    @cached_property
    def facts(self) -> Facts:
        """The memory that it needs: stored with its code, or planned in subclasses that compile nothing."""
        with self._as_made():
            return planned(self.graph, self.updates, self.options, self.constants)

    @property
    def program(self) -> KernelProgram:
        """Its kernels, calls and memory plan, planned again on demand."""
        with self._as_made():
            return compiler.backend.compiled(self.graph, self.updates, self.options, self.constants)

    def _as_made(self) -> AbstractContextManager[None]:
        """Inside, algorithms are chosen by the times that were recorded when this program was compiled."""
        return compiler.conv_choice.measured_as(self._times)

    def passes(self) -> dict[str, Graph]:
        """Its graph after each pass of the compiler."""
        with self._as_made():
            return compiler.backend.passes(self.graph, self.options, self.updates)

    @property
    def where(self) -> str:
        """The hardware that it runs on, and whether the code is slower than it could be."""
        return f"{self.threads} threads" + ("" if self.options.optimize else ", code not optimized")

    def sources(self) -> list[str]:
        """The LLVM IR of every function."""
        with self._as_made():
            return [str(f) for f in compiler.module.write(self.program).module.functions if not f.is_declaration]

    def notes(self) -> list[str]:
        """The convolutions that are not computed by their preferred algorithm, with the reason."""
        with self._as_made():
            anchored = [k for k in self.program.plans if k.anchor is not None and k.anchor.op.kernel == "convolution"]
            found = [compiler.planner.choice(kernel, self.options).note for kernel in anchored]
        return [note for note in found if note]

    @property
    def workspace_bytes(self) -> int:
        """The largest workspace of a product or convolution, in bytes."""
        return max((plan.workspace for plan in self.program.plans.values()), default=0)

    def roof(self) -> Roofline:
        """The roofline of this many threads of this machine."""
        return compiler.roofline.roof(self.threads)

    def seconds(self, inputs: Sequence[int]) -> float:
        """The median time of a run on inputs at these addresses. They must not include state, which would change."""
        assert not self.updates
        times = []
        for _ in range(TIMED + 1):
            start = time.perf_counter()
            self.call(inputs)
            times.append(time.perf_counter() - start)
        return sorted(times[1:])[TIMED // 2]  # the first one warms up

    def profile(self, inputs: Sequence[int], repeats: int | None = None) -> Profile:
        """The time of each of its calls, on inputs at these addresses; they are not changed."""
        with self._as_made():
            return profile(self.program, self.options, inputs, repeats)

    def argument(self, position: int, given: Buffer | np.ndarray) -> tuple[np.ndarray, int]:
        """The memory of an argument as the program reads it, to be held during the call, and its address."""
        if isinstance(given, Buffer):
            if given.place:  # known from an earlier call
                return given.content, given.place
            array = contiguous(content(given))
            if array is given.content:
                given.place = self._place(array)
        else:
            array = contiguous(given)
        return array, self._place(array)

    def call(self, inputs: Sequence[int], again: bool = True) -> list[np.ndarray]:
        """Run it on inputs at these addresses; new memory with each output that does not replace an input."""
        outputs, addresses = [], [*inputs]
        for kind in self._new_outputs:
            if kind is None:
                addresses.append(0)
            else:
                outputs.append(array := _empty(*kind))
                addresses.append(self._place(array))
        self.run(addresses, again)
        return outputs

    def run(self, addresses: Sequence[int], again: bool = True) -> None:
        """Run it. Without `again`, constants have not changed since the last run, and the values prepared from them are reused."""
        if not self._observed:
            self._observed = True
            for observe in OBSERVERS:
                observe(self, addresses)
        _acquire()  # programs share arenas, and most callers hold it already
        try:
            self._fill(self._frame, 8 * FRAME_RESERVED, *addresses)
            if self.facts.arena:
                self._frame[0] = self._arena.address(self.facts.arena)
            if self.facts.kept:
                self._keep(again)
            if self._collectives is not None:
                self._collectives.verify(lambda: f"{self._collective_order} {self.options.key} {self.graph.text()}")
            timeline = RECORDING.active
            if timeline is None:
                self._team.run(self._main, self._frame_address)
            else:
                self._run_recorded(timeline)
            if self._status[0]:
                self._raise()
            self._made = True
        finally:
            _release()

    def _run_recorded(self, timeline: Timeline) -> None:
        """The same, recording timestamps of all threads."""
        if self._timestamped is None:
            with recorded(f"prepare the trace of {self.label}", "compile"), self._as_made():
                self._timestamped = TimestampedProgram(self.program, self.options)
        with recorded(self.label, "call"):
            self._timestamped.run(self._team, self._frame, timeline)

    def _keep(self, again: bool) -> None:
        """Allocate the persistent memory, and say whether this run must fill it."""
        if self._kept is None:
            self._kept = _empty((self.facts.kept + ALIGN,), np.dtype(np.uint8))
            self._frame[2] = -(-self._place(self._kept) // ALIGN) * ALIGN
        self._status[2] = again or not self._made
        self._made = False  # unless the run comes to its end

    def _raise(self) -> None:
        site, value = self._status[0], self._status[1]
        self._status[0] = self._status[1] = 0
        if self._collectives is not None and site == FAILED:
            raise self._collectives.failure(value)
        with self._as_made():
            where, message, source = compiler.module.write(self.program).sites[site - 1]
        raise RunError(where, message.format(value=value), source)


def planned(graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]) -> Facts:
    """The memory that a program would need, planned without generating code."""
    memory = compiler.backend.compiled(graph, updates, options, constants).memory
    return Facts(memory.arena, memory.kept, memory.recomputed)


# Called with a program and its addresses before its first run, from WEFT_DEBUG=2 on. `explain` registers itself here.
OBSERVERS: list[Callable[[NativeExecutable, Sequence[int]], None]] = []


class _Arena:
    """Memory for values that are live during a run only. Programs run one at a time; those of one team share an arena."""

    def __init__(self) -> None:
        self._memory, self._address = np.empty(0, np.uint8), 0

    def address(self, wanted: int) -> int:
        """Memory of this many bytes, valid while the lock is held."""
        if self._memory.nbytes < wanted + ALIGN:
            self._memory = np.empty(0, np.uint8)  # the old one goes first
            try:
                self._memory = np.empty(wanted + ALIGN, np.uint8)
            except (MemoryError, ValueError):
                size = f"{wanted >> 20} MiB that live at one time in this program"
                raise RunError(
                    "run", f"not enough memory for the {size}. Use smaller batches or weft.checkpoint."
                ) from None
            self._address = -(-address_of()(self._memory) // ALIGN) * ALIGN
        for prepare in BEFORE_USE:
            prepare(self._memory)
        return self._address

    def release(self) -> None:
        self._memory, self._address = np.empty(0, np.uint8), 0


_arenas: dict[int, _Arena] = {}


def release_arenas() -> None:
    """Free the memory that programs share; their next run allocates it again. Used to measure it, and to shrink it."""
    with STATE_LOCK:
        for arena in _arenas.values():
            arena.release()


@gc_paused
def _code(
    graph: Graph, updates: Mapping[int, int], options: CompileOptions, constants: frozenset[int]
) -> tuple[bytes, NativeFacts]:
    """The object code of a program, from the disk if it is there."""
    inputs = f"updates {sorted(updates.items())} constants {sorted(constants)}"
    key = f"program {FORMAT} {options.key} {inputs} {compiler.conv_choice.fingerprint(graph)}\n{graph.text()}"
    start = time.perf_counter()
    fresh: list[KernelProgram] = []

    def make() -> bytes:
        program = compiler.backend.compiled(graph, updates, options, constants)
        fresh.append(program)
        called = (call.phase.symbol for call in program.calls if call.phase is not None)
        with compiler.library.preparing(called, bool(options.optimize)):
            written = compiler.module.write(program)
            _show(program, written.module)
            code = compiler.engine.object_code(written.module, bool(options.optimize))
        memory, symbols = program.memory, written.symbols
        facts = NativeFacts(
            memory.arena, memory.kept, memory.recomputed, symbols=symbols, collectives=collective_order(program)
        )
        return json.dumps(asdict(facts)).encode() + b"\n" + code

    head, _, code = (
        make() if knobs.debug >= 3 or has_external_ops(graph) else compiler.engine.kept_code(key, make)
    ).partition(b"\n")
    if knobs.debug:
        what = f"to {len(fresh[0].kernels)} kernels" if fresh else "from the disk"
        _say(f"compiled {len(graph.nodes)} nodes {what} in {time.perf_counter() - start:.2f} s")
    known = json.loads(head)
    sizes = known["arena"], known["kept"], known["recomputed"]
    return code, NativeFacts(*sizes, symbols=tuple(known["symbols"]), collectives=known["collectives"])


def collective_order(program: KernelProgram) -> str:
    """The order of a program's collectives, as numbers of their nodes; it must be the same in all processes."""
    number = {node: i for i, node in enumerate(program.graph.nodes)}
    anchors = [c.kernel.anchor for c in program.calls if c.kernel.anchor is not None]
    return " ".join(str(number[a]) for a in anchors if a.op.kind == "collective")


def _show(program: KernelProgram, module: ir.Module) -> None:
    """Print the stages of a program being compiled that the setting `debug` selects."""
    if knobs.debug >= 3:
        _say(program_text(program))
    if knobs.debug >= 4:
        _say(str(module))
    if knobs.debug >= 5:
        _say(compiler.engine.assembly(module))


def program_text(program: KernelProgram) -> str:
    """The schedule as text: kernels in order, barriers, and where results are written."""
    lines = []
    for number, call in enumerate(program.calls):
        if call.barrier:
            lines.append("  --- barrier")
        outputs = ", ".join(f"{n.type}@{_place(program, n)}" for n in call.kernel.outputs) or "copy"
        plan = f" [{program.plans[call.kernel].name}: {call.phase.symbol}]" if call.phase is not None else ""
        lines.append(f"  {number}: {call.kernel.name}{plan} -> {outputs}")
    lines.append(f"  arena {program.memory.arena} bytes, {program.memory.needed} needed at the worst moment")
    return "\n".join(lines)


def _place(program: KernelProgram, node: Any) -> str:
    slot = program.memory.slots[node]
    return f"arena+{slot.offset}" if slot.base == 0 else f"frame[{slot.base}]"


def _say(text: str) -> None:
    print(f"weft: {text}", file=sys.stderr)
