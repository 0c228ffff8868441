"""How much work a call is: operations, and bytes that must move whatever the kernel does.

Of memory every stored value counts once for being read and once for being written: what a kernel reads again should come
from the cache. Operations of a plan are those of the plain algorithm, so one that needs fewer can be above the roof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from ...graph.node import Node
from ..ir.index import Index, Loop
from ..ir.kernel import Kernel, View
from ..ir.loops import Step
from ..ir.program import Call, Program, operand_names, result_nodes
from ..ir.storage import nbytes
from .fuse import cost


@dataclass(frozen=True)
class Work:
    """Operations (additions; functions count as several), and bytes read and written."""

    flops: int = 0
    read: int = 0
    written: int = 0

    @property
    def nbytes(self) -> int:
        return self.read + self.written

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.read + other.read, self.written + other.written)


# Phases beside the work proper: the first words of their functions' names, and what they do.
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
    """What a phase does, if it only prepares or finishes the work proper."""
    words = symbol.split(".")
    return SIDE_PHASES.get(".".join(words[:2])) or SIDE_PHASES.get(words[0])


def work(program: Program, call: Call) -> Work:
    """The work of a call."""
    if call.kind == "copy":
        return Work(0, call.reads[0].nbytes, call.writes[0].nbytes)
    if call.kind == "control":
        return _control(program, call.kernel)
    if call.kind == "plan":
        return _plan(program, call)
    return _loops(call.kernel)


# --- loops --------------------------------------------------------------------------------------------------------------------


def _loops(kernel: Kernel) -> Work:
    return Work(_loop_flops(kernel), _loaded(kernel), sum(map(nbytes, kernel.outputs)))


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


def times(place: Iterable[Index]) -> int:
    """How many elements of a place there are: what does not depend on a loop is computed outside it."""
    return _product({l for index in place for l in index.loops})


def _product(loops: Iterable[Loop]) -> int:
    return prod(l.size for l in loops)


def _loaded(kernel: Kernel) -> int:
    """Bytes that a kernel's loops read: no element twice, and not what the kernel itself has just written."""
    elements: dict[Node, int] = defaultdict(int)
    for step in (s for b in kernel.bodies for s in b.steps if s.kind == "load"):
        elements[step.node] += times(step.place)
    own = {*kernel.outputs, kernel.anchor}
    return sum(min(n, prod(node.shape)) * node.dtype.itemsize for node, n in elements.items() if node not in own)


# --- plans --------------------------------------------------------------------------------------------------------------------


def _plan(program: Program, call: Call) -> Work:
    kernel, phase = call.kernel, call.phase
    read = sum(_viewed(v) for v in _operands(kernel, phase.reads))
    written = sum(nbytes(node) for name, node in result_nodes(kernel).items() if name in phase.writes)
    if phase.written is not None:
        written = min(written, phase.written)
    if not written and "work" in phase.writes and side_phase(phase.symbol) is not None:
        written = read  # a packed copy is about as large as what was packed
    total = Work(program.plans[kernel].flops if _is_main(program, call) else 0, read, written)
    if "epilogue" in phase.arguments and kernel.nest is not None:
        total += Work(_loop_flops(kernel), _loaded(kernel), _epilogue_writes(program, kernel) - written)
    return total


def _operands(kernel: Kernel, reads: Iterable[str]) -> list[tuple[View, Node]]:
    assert kernel.anchor is not None
    names = operand_names(kernel)
    each = zip(names, kernel.views, kernel.anchor.inputs, strict=False)
    return [(view, node) for name, view, node in each if name in reads]


def _viewed(operand: tuple[View, Node]) -> int:
    """Bytes of an operand; what it repeats is read once."""
    view, node = operand
    elements = prod(n for n, step in zip(node.shape, view.strides, strict=True) if step)
    return min(elements, prod(view.base.shape)) * view.base.dtype.itemsize


def _epilogue_writes(program: Program, kernel: Kernel) -> int:
    """What an anchor with an epilogue writes; the anchor's own result often lies where the epilogue's will."""
    assert kernel.anchor is not None
    slots = program.memory.slots
    return sum({slots[n]: nbytes(n) for n in (*kernel.outputs, kernel.anchor)}.values())


def _is_main(program: Program, call: Call) -> bool:
    """Whether a phase does the work proper of its plan: there is one such phase."""
    phases = program.plans[call.kernel].phases
    main = [p for p in phases if side_phase(p.symbol) is None] or phases
    return call.phase is main[-1]


# --- control flow -------------------------------------------------------------------------------------------------------------


def _control(program: Program, kernel: Kernel) -> Work:
    """All steps of a scan; the more expensive branch of a cond; one round of a while loop, since nobody knows how many there are."""
    assert kernel.anchor is not None
    bodies = [_total(body) for body in program.bodies[kernel]]
    if kernel.anchor.op.name == "cond":
        inner = max(bodies, key=lambda w: w.flops)
    else:
        inner = sum(bodies, Work())
    rounds = kernel.anchor.params[3] if kernel.anchor.op.name == "scan" else 1
    outside = sum(_viewed(o) for o in zip(kernel.views, kernel.anchor.inputs, strict=True))
    # What bodies pass on to each other stays in the cache as a rule: of memory, what goes in and comes out counts.
    return Work(rounds * inner.flops, outside, sum(map(nbytes, kernel.outputs)))


def _total(program: Program) -> Work:
    return sum((work(program, call) for call in program.calls), Work())


__all__ = ["Work", "side_phase", "step_cost", "times", "work"]
