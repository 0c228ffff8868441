"""Decompose: ops that a backend has no lowering rule for are replaced by the ops that their declarations say they consist of."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import InternalError
from ...graph.graph import Graph, rebuild
from ...graph.node import Node, Op
from ...graph.rewrite import transform

MAX_ROUNDS = 100  # a decomposition may contain ops that must be decomposed themselves


def decompose(graph: Graph, lowers: Callable[[Op], bool]) -> Graph:
    """The graph without ops that the backend lacks, as far as they can be decomposed."""
    for _ in range(MAX_ROUNDS):
        if not any(_is_missing(node, lowers) for node in graph.nodes):
            return graph
        graph = _once(graph, lowers)
    names = sorted({node.op.name for node in graph.nodes if _is_missing(node, lowers)})
    raise InternalError("decompose", f"the decompositions of {', '.join(names)} never end.")


def _once(graph: Graph, lowers: Callable[[Op], bool]) -> Graph:
    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if not _is_missing(node, lowers):
            return rebuild(node, inputs)
        assert node.op.decompose is not None
        new: Node = node.op.decompose(inputs, *node.params)
        if new.type != node.type:
            raise InternalError(
                "decompose", f"the op {node.op.name!r} gives {node.type}, its decomposition {new.type}."
            )
        return new

    return transform(graph, visit)


def _is_missing(node: Node, lowers: Callable[[Op], bool]) -> bool:
    return node.op.decompose is not None and not lowers(node.op)
