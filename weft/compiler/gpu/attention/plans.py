"""Plans of attention on GPUs: the phases of our kernels."""

from __future__ import annotations

from ....graph.node import Node
from ...ir.kernel import Kernel
from ...ir.plan import PlanPhase
from ..source import KernelSource
from .kernels import delta_tensor, write_delta, write_forward, write_keys, write_queries
from .problem import AttentionProblem


def phases(kernel: Kernel) -> tuple[PlanPhase, ...]:
    """The launches of our kernels: "x0", "x1", ... are inputs, "y0", ... results, "work" the scratch."""
    problem = AttentionProblem(kernel)
    inputs = frozenset(f"x{i}" for i in range(len(problem.anchor.inputs)))
    results = frozenset(problem.results)
    if not is_gradient(problem.anchor):
        return (PlanPhase("attention.forward", (), inputs, results),)
    work, keys = frozenset(("work",)), results & {"y1", "y2"}
    found = [PlanPhase("attention.delta", (), inputs, work)]
    if keys:
        found.append(PlanPhase("attention.keys", (), inputs | work, keys))
    if "y0" in results:
        found.append(PlanPhase("attention.queries", (), inputs | work, frozenset(("y0",))))
    return tuple(found)


def scratch_tensors(kernel: Kernel) -> tuple[Node, ...]:
    problem = AttentionProblem(kernel)
    return (delta_tensor(problem),) if is_gradient(problem.anchor) else ()


def write(kernel: Kernel, phase: PlanPhase) -> KernelSource:
    return _WRITERS[phase.symbol](AttentionProblem(kernel))


_WRITERS = {
    "attention.forward": write_forward, "attention.delta": write_delta, "attention.keys": write_keys, "attention.queries": write_queries,
}  # fmt: skip


def is_gradient(anchor: Node) -> bool:
    return anchor.op.name == "attention_gradients"
