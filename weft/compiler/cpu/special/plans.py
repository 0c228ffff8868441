"""Plans of the ops that are neither loops nor matrix products: sort, scatter, cumulative sum and product."""

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
    """The library calls that compute a node from its contiguous inputs "x0", "x1", ..., by at most `threads` threads.

    Invalid indices of a scatter are reported through "status"; the error of its i-th axis is "site{i}".
    """
    return PLANS[node.op.name](node, threads)
