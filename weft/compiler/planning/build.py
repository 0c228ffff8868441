"""From a graph to a program: the passes and plans of a backend's `Target`, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...dtypes import DType
from ...graph.graph import Graph
from ...graph.node import ITEM, Node
from ..gc_pause import uncollected
from ..ir.index import linear
from ..ir.kernel import ByLoops, Kernel
from ..ir.plan import Plan
from ..ir.program import FRAME_RESERVED, Call, Fused, Program, operand_names, operand_slots
from ..ir.storage import ALIGN, ARENA, Memory, Ranges, Slot, nbytes
from ..passes.precision import handed_on
from ..passes.slice_updates import spread_updates, updated_carries
from .algorithms import asked_for_loops
from .fuse import WIDENS, fuse
from .in_place import shared_places
from .memory import plan
from .schedule import Schedule, schedule


def _no_scratch(kernel: Kernel) -> int:
    return 0


def _no_survey(kernels: Sequence[Kernel]) -> None:
    pass


@dataclass(frozen=True)
class Target:
    """What a kind of device makes of graphs."""

    passes: Callable[[Graph], Graph]
    planner: Callable[[Kernel, int, Collection[Node], bool], Plan]  # how the work of an anchor is done
    threads: int = 1
    by_loops: ByLoops = asked_for_loops  # convolutions without a kernel of their own
    widens: frozenset[str] = WIDENS  # anchors that read 16 bits as they are
    scratch_of: Callable[[Kernel], int] = _no_scratch  # the bytes that a kernel of loops needs beside its tensors
    recompute_limit: int | None = None  # additions that are not made again for every kernel that wants the result
    survey: Callable[[Sequence[Kernel]], None] = _no_survey  # sees what has an anchor before any is planned
    narrow: DType | None = None  # the type in which kernels hand values to each other, on the way to a product
    gathers: bool = False  # what is made of state alone comes first: small kernels side by side share a launch
    much: int = 1 << 16  # bytes that are worth freeing early: who does so may no longer be side by side with others


@uncollected
def build(graph: Graph, updates: Mapping[int, int], target: Target, constants: frozenset[int] = frozenset()) -> Program:
    """The graph as a program.

    `updates`: output number -> input number whose memory it must end up in. `constants`: inputs that stay the same while the
    program, a loop's body, is run again and again.
    """
    graph = target.passes(spread_updates(graph, updates))
    graph, fused = _fused(graph, target)
    replaced = {graph.outputs[o]: graph.inputs[i] for o, i in updates.items()}
    invariant, still = _invariant(fused.kernels, {graph.inputs[i] for i in constants})
    prepared = {n for k in invariant for n in k.outputs}
    order = schedule(fused, replaced, target.gathers, target.much, prepared)
    bodies = {k: _bodies(k, target) for k in order.kernels if _is_control(k)}
    fixed, copies = _fixed(graph, order, updates, prepared)
    written_over = shared_places(order.written_over, fixed)
    shares = {anchor: written_over.get(node, node) for anchor, node in _shared(order).items()} | written_over
    anchored = [k for k in order.kernels if k.anchor is not None and k not in bodies]
    target.survey(anchored)
    plans = {
        k: target.planner(k, target.threads, still, _only_for_epilogue(k) and k.anchor not in shares) for k in anchored
    }
    scratch = {k: p.workspace for k, p in plans.items()} | {k: control_scratch(k, b) for k, b in bodies.items()}
    scratch |= {k: target.scratch_of(k) for k in order.kernels if k.anchor is None}
    packed = {k: p.packed for k, p in plans.items()}
    copied = {written_over.get(graph.outputs[n], graph.outputs[n]) for n in copies}
    hidden = {k for k, p in plans.items() if p.hidden}
    memory = plan(order.kernels, fixed, shares, scratch, packed, invariant, copied, hidden)
    calls = _calls(order, memory, plans, bodies)
    for call in calls:
        call.once = call.kernel in invariant or (call.phase is not None and _packs_only(call.kernel, call.phase, still))
    memory, last = _copies(graph, memory, copies, updates)
    calls += last
    _set_barriers(calls)
    return Program(graph, fused, calls, memory, plans, bodies, dict(updates))


def _fused(graph: Graph, target: Target) -> tuple[Graph, Fused]:
    """The graph as kernels, in mixed precision with what they hand on in the narrow type."""
    fused = fuse(graph, target.widens, target.recompute_limit, target.narrow is not None, target.by_loops)
    while target.narrow is not None:
        narrowed = handed_on(graph, [n for k in fused.kernels for n in k.outputs], target.narrow)
        if narrowed is graph:
            break
        graph, fused = narrowed, fuse(narrowed, target.widens, target.recompute_limit, False, target.by_loops)
    return graph, fused


def _copies(
    graph: Graph, memory: Memory, numbers: Sequence[int], updates: Mapping[int, int]
) -> tuple[Memory, list[Call]]:
    """Results that are not where they must end up are copied: first to plain outputs, then to state.

    State that becomes the old value of other state goes through the arena, since that may be overwritten by then.
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
            room = Slot(ARENA, -(-arena // ALIGN) * ALIGN, nbytes(node))
            arena = room.offset + room.nbytes
            aside.append(_copy(source, room))
            source = room
        inward.append(_copy(source, Slot(FRAME_RESERVED + updates[number], 0, nbytes(node))))
    return replace(memory, arena=arena), [*outward, *aside, *inward]


def _copy(source: Slot, target: Slot) -> Call:
    return Call(Kernel(None, None), "copy", [source], [target])


def _is_control(kernel: Kernel) -> bool:
    return kernel.anchor is not None and kernel.anchor.op.kind == "control"


def _invariant(kernels: Sequence[Kernel], known: set[Node]) -> tuple[set[Kernel], set[Node]]:
    """Kernels that read nothing but what stays the same, and all that does."""
    found: set[Kernel] = set()
    still = set(known)
    for kernel in kernels if known else ():
        if kernel.reads <= still and not _is_control(kernel):
            found.add(kernel)
            still |= set(kernel.outputs)
    return found, still


def _packs_only(kernel: Kernel, phase: Any, known: set[Node]) -> bool:
    """Whether a phase only prepares an operand that stays the same."""
    names = operand_names(kernel)
    bases = {name: found.base for name, found in zip(names, kernel.views, strict=False)}
    return bool(known) and phase.writes == {"packed"} and all(bases.get(n) in known for n in phase.reads)


def _bodies(kernel: Kernel, target: Target) -> tuple[Program, ...]:
    node = kernel.anchor
    assert node is not None
    graphs = [p for p in node.params if isinstance(p, Graph)]
    moving = {"scan": lambda: node.params[1] + node.params[2], "while_loop": lambda: node.params[2]}.get(node.op.name)
    still = frozenset(range(moving(), len(node.inputs))) if moving is not None else frozenset()
    in_place = {i: i for i in updated_carries(node)}
    return tuple(build(g, in_place if g is graphs[-1] else {}, target, still) for g in graphs)


def control_scratch(kernel: Kernel, bodies: Sequence[Program]) -> int:
    """The bytes that control flow needs: the arena of its bodies, and two places for each carried value."""
    return sum(slot.nbytes + ALIGN for slot in control_buffers(kernel, bodies).values()) + ALIGN


def control_buffers(kernel: Kernel, bodies: Sequence[Program]) -> dict[str, Slot]:
    """Where in its scratch control flow keeps what: its bodies' arenas and what they keep, carried values, a test's result.

    Carried values have two places, from one to the other, unless they are updated in place.
    """
    node = kernel.anchor
    assert node is not None
    wanted = {f"arena{i}": b.memory.arena for i, b in enumerate(bodies)}
    wanted |= {f"kept{i}": b.memory.kept for i, b in enumerate(bodies)}
    if node.op.name in ("scan", "while_loop"):
        for i in range(node.param("carried")):
            sides = ("even",) if i in bodies[-1].updates else ("even", "odd")
            wanted |= {f"{side}{i}": nbytes(node.inputs[i]) for side in sides}
        wanted["test"] = 1
    read = {n.params[0] for n in kernel.outputs if n.op is ITEM}
    for i, output in enumerate(bodies[-1].graph.outputs):
        if i not in read:  # it is computed all the same, and must go somewhere
            wanted[f"unread{i}"] = nbytes(output)
    buffers, offset = {}, 0
    for name, size in wanted.items():
        buffers[name] = Slot(0, offset, size)
        offset += -(-size // ALIGN) * ALIGN
    return buffers


def _fixed(
    graph: Graph, order: Schedule, updates: Mapping[int, int], prepared: Collection[Node]
) -> tuple[dict[Node, Slot], list[int]]:
    """The nodes whose memory comes with the call, and the outputs that must be copied at the end.

    A result that is `prepared`, computed once and kept, must reach the memory of every later call too: it is copied there.
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


def _shared(order: Schedule) -> dict[Node, Node]:
    """An anchor's own result is written where its epilogue will write, if that is the same place and kind of number.

    Not where an old value stands that the epilogue still has to read.
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
    """Whether an anchor's own result is read by its epilogue and by nobody else."""
    return kernel.nest is not None and kernel.anchor not in kernel.outputs


def _calls(order: Schedule, memory: Memory, plans: Mapping[Kernel, Plan], bodies: Mapping[Kernel, Any]) -> list[Call]:
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
            room = [memory.scratch[kernel]] if kernel in memory.scratch else []
            calls.append(Call(kernel, "control" if kernel in bodies else "loops", reads, writes + room))
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
