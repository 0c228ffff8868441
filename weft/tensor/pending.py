"""Bounds the graph of pending operations: nodes that nobody has read for too long are evaluated."""

from __future__ import annotations

from ..errors import RunError
from ..graph.node import CLOCK, Node, unfinished
from ..knobs import knobs
from ..runtime import evaluate


def is_overdue(node: Node) -> bool:
    """Whether the oldest unfinished input of a node is older than the limits on pending work."""
    return CLOCK.nodes - node.born > knobs.pending_nodes or CLOCK.bytes - node.born_bytes > knobs.pending_bytes


class _LastEvaluation:
    nodes = bytes = 0


def evaluate_overdue() -> None:
    """Evaluate all nodes that tensors refer to and that have been pending for too long, so that graphs stay bounded.

    This scans all live nodes, so it happens at most once per half of the limit.
    """
    nodes, held = CLOCK.nodes - _LastEvaluation.nodes, CLOCK.bytes - _LastEvaluation.bytes
    if nodes > knobs.pending_nodes // 2 or held > knobs.pending_bytes // 2:
        _LastEvaluation.nodes, _LastEvaluation.bytes = CLOCK.nodes, CLOCK.bytes
        waiting = unfinished(CLOCK.nodes - knobs.pending_nodes // 2, CLOCK.bytes - knobs.pending_bytes // 2)
        try:
            evaluate(waiting)
        except RunError:
            _evaluate_one_by_one(waiting)


def _evaluate_one_by_one(nodes: list[Node]) -> None:
    """Evaluate nodes one by one; an error is raised only when its own tensor is read."""
    for node in nodes:
        try:
            evaluate([node])
        except RunError:
            continue
