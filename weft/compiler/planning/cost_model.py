"""The cost of a call: operations, and the least bytes that must be moved.

Every stored value counts once when it is read and once when it is written: repeated reads should come from the cache. The operations
of a product or convolution are those of the direct algorithm, so one that needs fewer can exceed the roofline. Calls of the first run only,
such as packing weights, cost nothing: every run reads their results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from ...graph.node import Node
from ...records import dataclass
from ..ir.index import IndexExpr, Loop
from ..ir.kernel import Kernel, View
from ..ir.loops import Step
from ..ir.plan import Plan
from ..ir.program import FRAME_RESERVED, Call, KernelProgram, operand_names, result_nodes
from ..ir.storage import KEPT, Ranges, nbytes
from .fuse import cost


@dataclass(frozen=True)
class KernelCost:
    """Operations (additions; functions count as several), and bytes read and written.

    `persistent` of these bytes outlive a run: arguments, parameters, packed weights.
    """

    flops: int = 0
    read: int = 0
    written: int = 0
    persistent: int = 0

    @property
    def nbytes(self) -> int:
        return self.read + self.written

    def times(self, share: float) -> KernelCost:
        return KernelCost(*(round(share * part) for part in (self.flops, self.read, self.written, self.persistent)))

    def __add__(self, other: KernelCost) -> KernelCost:
        return KernelCost(
            self.flops + other.flops,
            self.read + other.read,
            self.written + other.written,
            self.persistent + other.persistent,
        )


# Phases that prepare or finish the main work: the first parts of their functions' names, and what they do.
SIDE_PHASES = {
    "pack": "pack",
    "conv_pack": "pack the filter",
    "winograd_filter": "filter transform",
    "fft_filter": "filter transform",
    "fft_image": "image transform",
    "fft_result": "inverse transform",
    "fft_taps": "inverse transform",
    "conv_pad": "pad",
    "conv_patches": "gather patches",
    "conv_table": "table of places",
    "conv_lines": "table of lines",
    "conv_scatter_pack": "pack the filter",
    "addup": "add up",
    "conv_sum": "add up",
    "conv_finish": "add up",
    "patches": "gather patches",
    "finish": "add up",
    "after": "epilogue",
    "scatter.copy": "copy",
    "scatter.places": "find places",
    "attention.pack": "pack",
    "attention.rows": "pack",
    "attention.delta": "sum of products",
    "argsort.keys": "make keys",
    "argsort.count": "count",
    "argsort.place": "place",
}


def side_phase(symbol: str) -> str | None:
    """The description of a phase that only prepares or finishes the main work."""
    words = symbol.split(".")
    return SIDE_PHASES.get(".".join(words[:2])) or SIDE_PHASES.get(words[0])


def work(program: KernelProgram, call: Call) -> KernelCost:
    """The work of a call, in every run but the first."""
    if call.once:
        return KernelCost()
    if call.kind == "copy":
        places = (call.reads[0], call.writes[0])
        persistent = sum(slot.nbytes for slot in places if _outlives(program, slot.base))
        return KernelCost(0, places[0].nbytes, places[1].nbytes, persistent)
    if call.kind == "control":
        return _control(program, call.kernel)
    if call.kind == "plan":
        return _plan(program, call)
    return _loops(program, call.kernel)


def kernel_cost(kernel: Kernel, plan: Plan | None, bodies: Sequence[KernelProgram] = ()) -> KernelCost:
    """The work of a whole kernel before its memory is planned: all phases of its plan, or all steps of its bodies."""
    anchor, written = kernel.anchor, sum(map(nbytes, kernel.outputs))
    loops = KernelCost(_loop_flops(kernel), sum(_loaded(kernel).values()), written)
    if anchor is None:
        return loops
    read = sum(_viewed(operand) for operand in zip(kernel.views, anchor.inputs, strict=True))
    if plan is not None:
        flops = anchor.op.flops(anchor) if anchor.op.flops is not None else plan.flops
    else:
        flops = _rounds(anchor) * _body_flops(anchor, bodies)
    return loops + KernelCost(flops, read, 0)


def persistent_bytes(program: KernelProgram) -> int:
    """The bytes that a run accesses of its inputs and of persistent memory, each counted once, without those that only the first run reads."""
    touched = Ranges()
    for slot in (slot for call in program.calls if not call.once for slot in (*call.reads, *call.writes)):
        if _outlives(program, slot.base):
            touched.add(slot)
    return touched.nbytes


def _outlives(program: KernelProgram, base: int) -> bool:
    """Whether an entry of the frame is memory that outlives a run: an input, or persistent memory."""
    return base == KEPT or FRAME_RESERVED <= base < FRAME_RESERVED + len(program.graph.inputs)


def _persistent(program: KernelProgram, sizes: Mapping[Node, int]) -> int:
    """The bytes of those nodes whose memory outlives a run."""
    slots = program.memory.slots
    return sum(size for node, size in sizes.items() if node in slots and _outlives(program, slots[node].base))


# --- loops --------------------------------------------------------------------------------------------------------------------


def _loops(program: KernelProgram, kernel: Kernel) -> KernelCost:
    loaded, stored = _loaded(kernel), {node: nbytes(node) for node in kernel.outputs}
    persistent = _persistent(program, loaded) + _persistent(program, stored)
    return KernelCost(_loop_flops(kernel), sum(loaded.values()), sum(stored.values()), persistent)


def _loop_flops(kernel: Kernel) -> int:
    if kernel.nest is None:
        return 0
    total = 0
    for phase, body in zip(kernel.nest.phases, kernel.bodies, strict=True):
        total += sum(step_cost(s) * times(s.place) for s in body.steps)
        for reduction in phase.reductions:
            total += len(reduction.factors) * _product((*kernel.nest.outer, *reduction.loops))
    return total


def step_cost(step: Step) -> int:
    """The operations of a step for one element."""
    if step.kind == "window":
        return len(step.args)
    return cost(step.node) if step.kind in ("op", "bits") else 0


def times(place: Iterable[IndexExpr]) -> int:
    """How often a place is computed: what does not depend on a loop is computed outside it."""
    return _product({l for index in place for l in index.loops})


def _product(loops: Iterable[Loop]) -> int:
    return prod(l.size for l in loops)


def _loaded(kernel: Kernel) -> dict[Node, int]:
    """Bytes that a kernel's loops read of each value: each element once, without the kernel's own results."""
    elements: dict[Node, int] = defaultdict(int)
    for step in (s for b in kernel.bodies for s in b.steps if s.kind == "load"):
        elements[step.node] += times(step.place)
    own = {*kernel.outputs, kernel.anchor}
    return {n: min(count, prod(n.shape)) * n.dtype.itemsize for n, count in elements.items() if n not in own}


# --- plans --------------------------------------------------------------------------------------------------------------------


def _plan(program: KernelProgram, call: Call) -> KernelCost:
    kernel, phase = call.kernel, call.phase
    operands = [(view.base, _viewed((view, node))) for view, node in _operands(kernel, phase.reads)]
    packed = program.memory.packed[kernel].nbytes if "packed" in phase.reads else 0
    read = sum(size for _, size in operands) + packed
    results = {node: nbytes(node) for name, node in result_nodes(kernel).items() if name in phase.writes}
    written = sum(results.values())
    persistent = packed + sum(_persistent(program, {node: size}) for node, size in operands)
    if phase.written is not None:
        written = min(written, phase.written)
    if not written and "work" in phase.writes and side_phase(phase.symbol) is not None:
        written = read  # a packed copy is about as large as the operand
    flops = _anchor_flops(program, kernel) if phase.share is not None or _is_main(program, call) else 0
    total = KernelCost(flops, 0, written, _persistent(program, results))
    if "epilogue" in phase.arguments and kernel.nest is not None:
        loaded = _loaded(kernel)
        more = KernelCost(_loop_flops(kernel), sum(loaded.values()), _epilogue_writes(program, kernel) - written)
        updated = {node: nbytes(node) for node in kernel.outputs if node not in results}
        total += replace(more, persistent=_persistent(program, loaded) + _persistent(program, updated))
    # Each of several phases reads the operands as a whole.
    return total.times(1.0 if phase.share is None else phase.share) + KernelCost(0, read, 0, persistent)


def _anchor_flops(program: KernelProgram, kernel: Kernel) -> int:
    """The FLOPs of the op, if it declares them; those of a sort or a scatter depend on the plan."""
    anchor = kernel.anchor
    assert anchor is not None
    return anchor.op.flops(anchor) if anchor.op.flops is not None else program.plans[kernel].flops


def _operands(kernel: Kernel, reads: Iterable[str]) -> list[tuple[View, Node]]:
    assert kernel.anchor is not None
    names = operand_names(kernel)
    each = zip(names, kernel.views, kernel.anchor.inputs, strict=False)
    return [(view, node) for name, view, node in each if name in reads]


def _viewed(operand: tuple[View, Node]) -> int:
    """Bytes of an operand; broadcast elements are read once."""
    view, node = operand
    elements = prod(n for n, step in zip(node.shape, view.strides, strict=True) if step)
    return min(elements, prod(view.base.shape)) * view.base.dtype.itemsize


def _epilogue_writes(program: KernelProgram, kernel: Kernel) -> int:
    """The bytes that an anchor with an epilogue writes; both results often share their memory."""
    assert kernel.anchor is not None
    slots = program.memory.slots
    return sum({slots[n]: nbytes(n) for n in (*kernel.outputs, kernel.anchor)}.values())


def _is_main(program: KernelProgram, call: Call) -> bool:
    """Whether a phase does the main work of its plan, where one phase does all of it."""
    phases = program.plans[call.kernel].phases
    main = [p for p in phases if side_phase(p.symbol) is None] or phases
    return call.phase is main[-1]


# --- control flow -------------------------------------------------------------------------------------------------------------


def _control(program: KernelProgram, kernel: Kernel) -> KernelCost:
    """All steps of a scan; the more expensive branch of a cond; one iteration of a while loop, since their number is not known."""
    assert kernel.anchor is not None
    flops = _rounds(kernel.anchor) * _body_flops(kernel.anchor, program.bodies[kernel])
    operands = [
        (view.base, _viewed((view, node))) for view, node in zip(kernel.views, kernel.anchor.inputs, strict=True)
    ]
    persistent = sum(_persistent(program, {node: size}) for node, size in operands)
    # Values that bodies pass to each other mostly stay in the cache: only inputs and results count as memory traffic.
    outside, results = sum(size for _, size in operands), sum(map(nbytes, kernel.outputs))
    return KernelCost(flops, outside, results, persistent)


def _rounds(anchor: Node) -> int:
    return anchor.param("length") if anchor.op.name == "scan" else 1


def _body_flops(anchor: Node, bodies: Sequence[KernelProgram]) -> int:
    each = [_total(body).flops for body in bodies]
    return max(each) if anchor.op.name == "cond" else sum(each)


def starts(program: KernelProgram, call: Call) -> int:
    """How many kernels a call starts one after the other: those of all steps of a scan, otherwise one.

    Phases of a kernel count once. Copies of carried values are no kernels, so the count is that of the call's name, `scan of 128 steps (2 kernels)`.
    """
    if call.once:
        return 0
    if call.kind != "control":
        return 1
    kernel = call.kernel
    assert kernel.anchor is not None
    bodies = [_body_starts(body) for body in program.bodies[kernel]]
    if kernel.anchor.op.name == "cond":
        return max(bodies)
    return sum(bodies) * (kernel.anchor.param("length") if kernel.anchor.op.name == "scan" else 1)


def _body_starts(body: KernelProgram) -> int:
    single = {call.kernel for call in body.calls if call.kind not in ("control", "copy") and not call.once}
    return len(single) + sum(starts(body, call) for call in body.calls if call.kind == "control")


def _total(program: KernelProgram) -> KernelCost:
    return sum((work(program, call) for call in program.calls), KernelCost())


__all__ = ["KernelCost", "kernel_cost", "persistent_bytes", "side_phase", "starts", "step_cost", "times", "work"]
