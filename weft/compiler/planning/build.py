"""From a graph to a program: the passes and plans of a backend, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ...dtypes import DType
from ...graph.graph import Graph
from ...graph.node import ITEM, Node
from ...records import dataclass
from ..gc_pause import gc_paused
from ..ir.index import linear
from ..ir.kernel import ByLoops, Kernel
from ..ir.plan import Plan
from ..ir.program import FRAME_RESERVED, Call, Fused, KernelProgram, operand_names, operand_slots
from ..ir.storage import ALIGN, ARENA, MemoryPlan, Ranges, Slot, nbytes
from ..passes.narrow_scans import narrow_scans
from ..passes.precision import handed_on
from ..passes.slice_updates import spread_updates, updated_carries
from .algorithms import asked_for_loops
from .fuse import WIDENS, KernelKinds, fuse
from .in_place import shared_places
from .memory_limit import ArenaLayout, check, outside_bytes, within
from .overlap import is_collective
from .rematerialize import Occurrences
from .schedule import KernelSchedule, schedule

EAGER_ARENA = (
    1.1  # the largest arena, relative to that of the usual order, of an order in which more values can be dropped
)


def _no_scratch(kernel: Kernel) -> int:
    return 0


def _always(kernel: Kernel, plan: Plan | None) -> bool:
    return True


def _no_survey(kernels: Sequence[Kernel], unchanging: Collection[Node]) -> None:
    pass


Planner = Callable[[Kernel, int, Collection[Node], bool], Plan]


@dataclass(frozen=True)
class Backend:
    """The parts of compilation that depend on the backend."""

    passes: Callable[[Graph], Graph]
    planner: Planner  # plans the kernels of an anchor
    threads: int = 1
    by_loops: ByLoops = asked_for_loops  # convolutions without a kernel of their own
    widens: KernelKinds = WIDENS  # kernels that read 16-bit floats without a copy
    scratch_of: Callable[[Kernel], int] = _no_scratch  # the bytes that a kernel of loops needs beside its tensors
    recompute_limit: int | None = None  # cost, in additions, above which a value is stored rather than recomputed
    survey: Callable[[Sequence[Kernel], Collection[Node]], None] = (
        _no_survey  # is called with all kernels that have an anchor, and with all loop-invariant nodes, before any is planned
    )
    narrow: DType | None = None  # mixed precision: the dtype of values that kernels pass to each other
    gathers: bool = False  # kernels that read state alone come first: small neighbouring kernels share a launch
    early_free_bytes: int = 1 << 16  # a kernel that frees so much is scheduled eagerly, at the price of more launches
    overlaps: bool = False  # collectives run beside other kernels
    libraries: bool = False  # products may be computed by a library, which adds a bias and one more tensor
    memory: int | None = None  # bytes that a program may take: values that do not fit are computed again
    flops_per_byte: float = 10.0  # operations of a product in the time that it takes to move a byte
    body_planner: Planner | None = None  # the planner in bodies of control flow, if it is another
    by_graph: Callable[[Kernel, Plan | None], bool] = (
        _always  # whether the results of a kernel are, bit for bit, what loops compute from the same operands
    )


@gc_paused
def build(
    graph: Graph, updates: Mapping[int, int], target: Backend, constants: frozenset[int] = frozenset()
) -> KernelProgram:
    """The graph as a program.

    `updates`: output number -> number of the input that it replaces in place. `constants`: inputs that are loop-invariant, if the
    program is the body of a loop.
    """
    if target.memory is None:
        return _build(graph, updates, target, constants)
    outside = outside_bytes(graph, updates)
    program = _build(graph, updates, target, constants, max(0, target.memory - outside))
    check(target.memory, outside, program.memory)
    return program


def _build(
    graph: Graph, updates: Mapping[int, int], target: Backend, constants: frozenset[int], limit: int | None = None
) -> KernelProgram:
    """The same. `limit`: the bytes of the arena and of what is kept, or as few as possible if it needs more."""
    graph = target.passes(spread_updates(graph, updates))
    graph, fused = _fused(graph, target)
    replaced = {graph.outputs[o]: graph.inputs[i] for o, i in updates.items()}
    invariant, unchanging = _invariant(fused.kernels, {graph.inputs[i] for i in constants})
    prepared = {n for k in invariant for n in k.outputs}

    def scheduled(early_free_bytes: int) -> KernelSchedule:
        return schedule(fused, replaced, target.gathers, early_free_bytes, prepared, target.overlaps)

    order = scheduled(target.early_free_bytes)
    bodies = {k: _bodies(k, target) for k in order.kernels if _is_control(k)}
    fixed, copies = _fixed(graph, order, updates, prepared)
    written_over = shared_places(order.written_over, fixed)
    shares = {anchor: written_over.get(node, node) for anchor, node in _shared(order).items()} | written_over
    anchored = [k for k in order.kernels if k.anchor is not None and k not in bodies]
    target.survey(anchored, unchanging)
    plans = {
        k: target.planner(k, target.threads, unchanging, _only_for_epilogue(k) and k.anchor not in shares)
        for k in anchored
    }
    packed = {k: p.packed for k, p in plans.items()}
    copied = {written_over.get(graph.outputs[n], graph.outputs[n]) for n in copies}
    hidden = {k for k, p in plans.items() if p.hidden}

    @cache
    def scratch(kernel: Kernel) -> int:
        if kernel in bodies:
            return control_scratch(kernel, bodies[kernel])
        return plans[kernel].workspace if kernel in plans else target.scratch_of(kernel)

    layout = ArenaLayout(fixed, shares, scratch, packed, invariant, copied, hidden, order.beside)
    found = Occurrences.once(order.kernels)
    memory = layout.plan(found)
    if limit is not None and memory.arena + memory.kept > limit:
        eager = scheduled(0)  # kernels that need no new memory run at once, as do those that update in place
        if layout.plan(Occurrences.once(eager.kernels)).arena <= EAGER_ARENA * memory.arena:
            order = eager
        found = within(order, layout, limit - memory.kept, plans, bodies, target.flops_per_byte, target.by_graph)
        memory, order = layout.plan(found), replace(order, kernels=found.kernels)
        memory = replace(memory, recomputed=sum(nbytes(node) for k in found.recomputed for node in k.outputs))
        plans |= {k: plans[original] for k, original in found.again.items() if original in plans}
        bodies |= {k: bodies[original] for k, original in found.again.items() if original in bodies}
    calls = _calls(order, memory, plans, bodies)
    for call in calls:
        call.beside = call.kernel in order.beside
        call.once = call.kernel in invariant or (
            call.phase is not None and _packs_only(call.kernel, call.phase, unchanging)
        )
    memory, last = _copies(graph, memory, copies, updates)
    calls += last
    _set_barriers(calls)
    return KernelProgram(graph, fused, calls, memory, plans, bodies, dict(updates), found.recomputed)


def _fused(graph: Graph, target: Backend) -> tuple[Graph, Fused]:
    """The graph as kernels; in mixed precision, with the values that they pass to each other in the narrow dtype."""
    how = target.widens, target.recompute_limit
    fused = fuse(graph, *how, target.narrow is not None, target.by_loops, target.libraries)
    while target.narrow is not None:
        narrowed = narrow_scans(handed_on(graph, [n for k in fused.kernels for n in k.outputs], target.narrow))
        if narrowed is graph:
            break
        graph, fused = narrowed, fuse(narrowed, *how, False, target.by_loops, target.libraries)
    return graph, fused


def _copies(
    graph: Graph, memory: MemoryPlan, numbers: Sequence[int], updates: Mapping[int, int]
) -> tuple[MemoryPlan, list[Call]]:
    """Results that are not computed in their final memory are copied: first to plain outputs, then to state.

    State that is replaced by the old value of other state is copied through the arena, because the old value may be overwritten.
    """
    first = FRAME_RESERVED + len(graph.inputs)
    overwritten = {FRAME_RESERVED + i for i in updates.values()}
    outward, aside, inward = [], [], []
    arena = memory.arena
    for number in numbers:
        node = graph.outputs[number]
        source = memory.slots[node]
        if number not in updates:
            outward.append(_copy(source, Slot(first + number, 0, nbytes(node))))
            continue
        if source.base in overwritten:
            temporary = Slot(ARENA, -(-arena // ALIGN) * ALIGN, nbytes(node))
            arena = temporary.offset + temporary.nbytes
            aside.append(_copy(source, temporary))
            source = temporary
        inward.append(_copy(source, Slot(FRAME_RESERVED + updates[number], 0, nbytes(node))))
    return replace(memory, arena=arena), [*outward, *aside, *inward]


def _copy(source: Slot, target: Slot) -> Call:
    return Call(Kernel(None, None), "copy", [source], [target])


def _is_control(kernel: Kernel) -> bool:
    return kernel.anchor is not None and kernel.anchor.op.kind == "control"


def _invariant(kernels: Sequence[Kernel], known: set[Node]) -> tuple[set[Kernel], set[Node]]:
    """Kernels whose operands are all loop-invariant, and all loop-invariant nodes."""
    found: set[Kernel] = set()
    unchanging = set(known)
    for kernel in kernels if known else ():
        if kernel.reads <= unchanging and not (_is_control(kernel) or is_collective(kernel)):
            found.add(kernel)
            unchanging |= set(kernel.outputs)
    return found, unchanging


def _packs_only(kernel: Kernel, phase: Any, known: set[Node]) -> bool:
    """Whether a phase only packs a loop-invariant operand."""
    names = operand_names(kernel)
    bases = {name: found.base for name, found in zip(names, kernel.views, strict=False)}
    return bool(known) and phase.writes == {"packed"} and all(bases.get(n) in known for n in phase.reads)


def _bodies(kernel: Kernel, target: Backend) -> tuple[KernelProgram, ...]:
    node = kernel.anchor
    assert node is not None
    graphs = [p for p in node.params if isinstance(p, Graph)]
    is_loop = "carried" in node.op.params
    varying = sum(node.get_params(*(p for p in ("carried", "sequences") if p in node.op.params)))
    invariant = frozenset(range(varying, len(node.inputs))) if is_loop else frozenset()
    in_place = {i: i for i in updated_carries(node)}
    inside = replace(target, planner=target.body_planner or target.planner)
    return tuple(_build(g, in_place if g is graphs[-1] else {}, inside, invariant) for g in graphs)


def control_scratch(kernel: Kernel, bodies: Sequence[KernelProgram]) -> int:
    """The scratch memory of control flow, in bytes: the arenas of its bodies, and two buffers for each carried value."""
    return sum(slot.nbytes + ALIGN for slot in control_buffers(kernel, bodies).values()) + ALIGN


def control_buffers(kernel: Kernel, bodies: Sequence[KernelProgram]) -> dict[str, Slot]:
    """The layout of the scratch of control flow: arenas and persistent memory of bodies, carried values, the result of a test.

    Carried values are double buffered, unless they are updated in place.
    """
    node = kernel.anchor
    assert node is not None
    wanted = {f"arena{i}": b.memory.arena for i, b in enumerate(bodies)}
    wanted |= {f"kept{i}": b.memory.kept for i, b in enumerate(bodies)}
    if "carried" in node.op.params:  # a loop
        for i in range(node.param("carried")):
            sides = ("even",) if i in bodies[-1].updates else ("even", "odd")
            wanted |= {f"{side}{i}": nbytes(node.inputs[i]) for side in sides}
        wanted["test"] = 1
    read = {n.param("index") for n in kernel.outputs if n.op is ITEM}
    for i, output in enumerate(bodies[-1].graph.outputs):
        if i not in read:  # unused, but computed, so it needs memory
            wanted[f"unread{i}"] = nbytes(output)
    buffers, offset = {}, 0
    for name, size in wanted.items():
        buffers[name] = Slot(0, offset, size)
        offset += -(-size // ALIGN) * ALIGN
    return buffers


def _fixed(
    graph: Graph, order: KernelSchedule, updates: Mapping[int, int], prepared: Collection[Node]
) -> tuple[dict[Node, Slot], list[int]]:
    """The nodes whose memory is passed with the call, and the outputs that must be copied at the end.

    A result that is `prepared`, computed once and kept, is copied to the memory of every call.
    """
    fixed = {node: Slot(FRAME_RESERVED + i, 0, nbytes(node)) for i, node in enumerate(graph.inputs)}
    copies = []
    for number, node in enumerate(graph.outputs):
        if (
            node in order.in_place
            and number in updates
            and order.in_place[node] is graph.inputs[updates[number]]
            and node not in fixed
            and node not in prepared
        ):
            fixed[node] = fixed[order.in_place[node]]
        elif number in updates and node is graph.inputs[updates[number]]:
            continue  # it stays what it is
        elif node in fixed or node in prepared or number in updates:
            copies.append(number)
        else:
            fixed[node] = Slot(FRAME_RESERVED + len(graph.inputs) + number, 0, nbytes(node))
    return fixed, copies


def _shared(order: KernelSchedule) -> dict[Node, Node]:
    """An anchor's own result is written to the memory of its epilogue's result, if position and dtype are the same.

    Not over an old value that the epilogue still reads.
    """
    shares = {}
    for kernel in order.kernels:
        anchor = kernel.anchor
        if anchor is None or kernel.nest is None or anchor in kernel.outputs:
            continue
        here = {s.indices[0] for b in kernel.bodies for s in b.steps if s.kind == "load" and s.node is anchor}
        for store in kernel.nest.phases[0].stores:
            if {linear(store.place, store.node.shape)} == here and store.node.dtype is anchor.dtype:
                if order.in_place.get(store.node) not in kernel.reads:
                    shares[anchor] = store.node
                    break
    return shares


def _only_for_epilogue(kernel: Kernel) -> bool:
    """Whether an anchor's own result is only read by its epilogue."""
    return kernel.nest is not None and kernel.anchor not in kernel.outputs


def _calls(
    order: KernelSchedule, memory: MemoryPlan, plans: Mapping[Kernel, Plan], bodies: Mapping[Kernel, Any]
) -> list[Call]:
    calls = []
    for kernel in order.kernels:
        reads = [memory.slots[n] for n in kernel.reads if n in memory.slots]
        writes = [memory.slots[n] for n in kernel.outputs]
        if kernel in plans:
            operands = operand_slots(kernel, memory)
            for phase in plans[kernel].phases:
                if phase.copies and operands["x0"] == operands["y"]:
                    continue
                touched = [operands[n] for n in phase.reads | phase.writes if n in operands]
                written = [operands[n] for n in phase.writes if n in operands]
                if "epilogue" in phase.arguments and kernel.nest is not None:
                    touched, written = touched + reads, written + writes
                calls.append(Call(kernel, "plan", touched, written, phase=phase, operands=operands))
        else:
            scratch = [memory.scratch[kernel]] if kernel in memory.scratch else []
            calls.append(Call(kernel, "control" if kernel in bodies else "loops", reads, writes + scratch))
    return calls


def _set_barriers(calls: Sequence[Call]) -> None:
    read, written = Ranges(), Ranges()
    for call in calls:
        if any(map(written.overlap, call.reads)) or any(written.overlap(s) or read.overlap(s) for s in call.writes):
            call.barrier = True
            read, written = Ranges(), Ranges()
        for slot in call.reads:
            read.add(slot)
        for slot in call.writes:
            written.add(slot)
