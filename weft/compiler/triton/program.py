"""A graph as launches: kernels as Triton source, and where in memory their tensors lie.

The passes, fusion, the order of kernels and the plan of memory are those of every device. A stream keeps launches in order, so
barriers need no thought.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from ...dtypes import DType
from ...errors import UserError
from ...graph.graph import Graph
from ...graph.node import Node
from ..kernel import Kernel
from ..llvm.library import Phase, Plan
from ..memory import Slot, nbytes
from ..nest import ready
from ..pipeline import applied
from ..program import Call, Program, build, operand_names
from .contraction import can_write, parts_for, workspace, write_contraction, write_finish, write_parts
from .kernels import write_kernel
from .source import KernelSource, joined

LANES = 32  # of a warp: loops as long as that are worth reading side by side
SMALL = 256  # programs: fewer leave room on a GPU for others beside them


@dataclass(frozen=True)
class Launch:
    """One launch: a kernel and the memory of its arguments. Without a kernel the first slot is copied to the second."""

    kernel: KernelSource | None
    slots: tuple[Slot, ...]


def gpu_program(graph: Graph, updates: Mapping[int, int], narrow: DType | None = None) -> Program:
    """The graph as a program: fused, ordered, with its memory planned. `updates`: outputs that replace inputs in place."""
    return build(graph, updates, _plan, partial(applied, narrow=narrow), 1)


def _plan(kernel: Kernel, threads: int, still: Collection[Node], hidden: bool) -> Plan:
    """A product or convolution is one kernel, its epilogue included; two where few sums are long, with their parts in between."""
    anchor = kernel.anchor
    assert anchor is not None
    if not prod(anchor.shape):
        return Plan("nothing", (), 0, 0)
    if not can_write(kernel):
        raise UserError(
            "cuda", f"the op {anchor.op.name!r} of {anchor.type} is not written for GPUs yet.", anchor.source
        )
    *operands, result = operand_names(kernel)
    parts = parts_for(anchor)
    if parts == 1:
        phase = Phase("whole", ("epilogue",), frozenset(operands), frozenset((result,)))
        return Plan("Triton", (phase,), 0, 0, hidden=hidden)
    first = Phase("parts", (), frozenset(operands), frozenset(("work",)))
    second = Phase("finish", ("epilogue",), frozenset(("work",)), frozenset((result,)))
    return Plan("Triton, in parts", (first, second), nbytes(workspace(kernel, parts)), 0, hidden=False)


def launches(program: Program) -> list[Launch]:
    """All launches of a program, in their order. Kernels that are the same are one object: they are compiled once."""
    scratch = program.memory.scratch.items()
    places = dict(program.memory.slots) | {
        workspace(k, parts_for(k.anchor)): s for k, s in scratch if k.anchor is not None
    }
    known: dict[object, KernelSource] = {}
    found = []
    for calls in _together(program.calls):
        if calls[0].kind == "copy":
            found.append(Launch(None, (calls[0].reads[0], calls[0].writes[0])))
            continue
        for made in _joined([_source(call) for call in calls]):
            # The text does not say of what type memory is, nor whose line an error is put down to.
            same = (made.body, tuple(node.type for node in made.arguments), made.errors)
            found.append(Launch(known.setdefault(same, made), tuple(places[node] for node in made.arguments)))
    return found


def _together(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls that do not wait for each other, in groups."""
    groups: list[list[Call]] = []
    for call in calls:
        if call.kind == "copy" or call.barrier or not groups or groups[-1][0].kind == "copy":
            groups.append([])
        groups[-1].append(call)
    return groups


def _joined(sources: Sequence[KernelSource]) -> list[KernelSource]:
    """Small kernels as one launch: it takes longer to begin than they do to run. Large ones keep their registers to themselves."""
    small = [s for s in sources if s.programs <= SMALL]
    return [*(s for s in sources if s.programs > SMALL), *([joined("kernel", small)] if small else [])]


def _source(call: Call) -> KernelSource:
    if call.kind == "control":
        assert call.kernel.anchor is not None
        raise UserError("cuda", f"{call.kernel.anchor.op.name} is not written for GPUs yet.", call.kernel.anchor.source)
    if call.kind == "plan":
        return _WRITERS[call.phase.symbol](call.kernel)
    return write_kernel("kernel", ready(call.kernel, LANES))


_WRITERS: dict[str, Callable[[Kernel], KernelSource]] = {
    "whole": lambda kernel: write_contraction("kernel", kernel),
    "parts": lambda kernel: write_parts("kernel", kernel, parts_for(_anchor(kernel))),
    "finish": lambda kernel: write_finish("kernel", kernel, parts_for(_anchor(kernel))),
}


def _anchor(kernel: Kernel) -> Node:
    assert kernel.anchor is not None
    return kernel.anchor
