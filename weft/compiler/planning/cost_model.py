"""The cost of a call: operations, and the least bytes that must be moved.

Every stored value counts once when it is read and once when it is written: repeated reads should come from the cache. The operations
of a product or convolution are those of the direct algorithm, so one that needs fewer can exceed the roofline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ...graph.node import Node
from ..ir.index import IndexExpr, Loop
from ..ir.kernel import Kernel, View
from ..ir.loops import Step
from ..ir.program import Call, KernelProgram, operand_names, result_nodes
from ..ir.storage import nbytes
from .fuse import cost


@dataclass(frozen=True)
class KernelCost:
    """Operations (additions; functions count as several), and bytes read and written."""

    flops: int = 0
    read: int = 0
    written: int = 0

    @property
    def nbytes(self) -> int:
        return self.read + self.written

    def __add__(self, other: KernelCost) -> KernelCost:
        return KernelCost(self.flops + other.flops, self.read + other.read, self.written + other.written)


# Phases that prepare or finish the main work: the first parts of their functions' names, and what they do.
SIDE_PHASES = {
    "pack": "pack",
    "conv_pack": "pack the filter",
    "winograd_filter": "filter transform",
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
    "argsort.keys": "make keys",
    "argsort.count": "count",
    "argsort.place": "place",
}


def side_phase(symbol: str) -> str | None:
    """What a phase does, if it only prepares or finishes the main work."""
    words = symbol.split(".")
    return SIDE_PHASES.get(".".join(words[:2])) or SIDE_PHASES.get(words[0])


def work(program: KernelProgram, call: Call) -> KernelCost:
    """The work of a call."""
    if call.kind == "copy":
        return KernelCost(0, call.reads[0].nbytes, call.writes[0].nbytes)
    if call.kind == "control":
        return _control(program, call.kernel)
    if call.kind == "plan":
        return _plan(program, call)
    return _loops(call.kernel)


# --- loops --------------------------------------------------------------------------------------------------------------------


def _loops(kernel: Kernel) -> KernelCost:
    return KernelCost(_loop_flops(kernel), _loaded(kernel), sum(map(nbytes, kernel.outputs)))


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


def _loaded(kernel: Kernel) -> int:
    """Bytes that a kernel's loops read: each element once, without the kernel's own results."""
    elements: dict[Node, int] = defaultdict(int)
    for step in (s for b in kernel.bodies for s in b.steps if s.kind == "load"):
        elements[step.node] += times(step.place)
    own = {*kernel.outputs, kernel.anchor}
    return sum(min(n, prod(node.shape)) * node.dtype.itemsize for node, n in elements.items() if node not in own)


# --- plans --------------------------------------------------------------------------------------------------------------------


def _plan(program: KernelProgram, call: Call) -> KernelCost:
    kernel, phase = call.kernel, call.phase
    read = sum(_viewed(v) for v in _operands(kernel, phase.reads))
    written = sum(nbytes(node) for name, node in result_nodes(kernel).items() if name in phase.writes)
    if phase.written is not None:
        written = min(written, phase.written)
    if not written and "work" in phase.writes and side_phase(phase.symbol) is not None:
        written = read  # a packed copy is about as large as the operand
    total = KernelCost(_anchor_flops(program, kernel) if _is_main(program, call) else 0, read, written)
    if "epilogue" in phase.arguments and kernel.nest is not None:
        total += KernelCost(_loop_flops(kernel), _loaded(kernel), _epilogue_writes(program, kernel) - written)
    return total


def _anchor_flops(program: KernelProgram, kernel: Kernel) -> int:
    """Of the op, if it declares them; a sort or a scatter depends on the plan."""
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
    """Whether a phase does the main work of its plan: there is one such phase."""
    phases = program.plans[call.kernel].phases
    main = [p for p in phases if side_phase(p.symbol) is None] or phases
    return call.phase is main[-1]


# --- control flow -------------------------------------------------------------------------------------------------------------


def _control(program: KernelProgram, kernel: Kernel) -> KernelCost:
    """All steps of a scan; the more expensive branch of a cond; one iteration of a while loop, since their number is not known."""
    assert kernel.anchor is not None
    bodies = [_total(body) for body in program.bodies[kernel]]
    if kernel.anchor.op.name == "cond":
        inner = max(bodies, key=lambda w: w.flops)
    else:
        inner = sum(bodies, KernelCost())
    rounds = kernel.anchor.param("length") if kernel.anchor.op.name == "scan" else 1
    outside = sum(_viewed(o) for o in zip(kernel.views, kernel.anchor.inputs, strict=True))
    # Values that bodies pass to each other mostly stay in the cache: only inputs and results count as memory traffic.
    return KernelCost(rounds * inner.flops, outside, sum(map(nbytes, kernel.outputs)))


def _total(program: KernelProgram) -> KernelCost:
    return sum((work(program, call) for call in program.calls), KernelCost())


__all__ = ["KernelCost", "side_phase", "step_cost", "times", "work"]
