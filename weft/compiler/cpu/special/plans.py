"""The ops that are neither loops nor matrix products: sorting, scattering, and running totals along an axis."""

from __future__ import annotations

from collections.abc import Callable

from ....graph.node import Node
from ...ir.plan import Plan
from . import cumulative as cumulate
from . import scatter, sort

PLANS: dict[str, Callable[[Node, int], Plan]] = {
    "argsort": sort.plan,
    "scatter": scatter.plan,
    "cumsum": cumulate.plan,
    "cumprod": cumulate.plan,
}


def plan(node: Node, threads: int) -> Plan:
    """How library functions compute a node from its inputs ("x0", "x1", ...), all without gaps, by up to so many threads.

    Wrong indices of a scatter are reported at "status", those of its i-th axis as those of "site{i}".
    """
    return PLANS[node.op.name](node, threads)
