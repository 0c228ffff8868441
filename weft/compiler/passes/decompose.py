"""Decompose: ops that a backend has no rule for, as the ops that their declarations say they are made of."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import InternalError
from ...graph.graph import Graph, rebuild
from ...graph.node import Node, Op, blame, toposort

MOST_ROUNDS = 100  # a rule may use ops that must be decomposed themselves, but not for ever


def decompose(graph: Graph, lowers: Callable[[Op], bool]) -> Graph:
    """The graph without ops that the backend lacks, as far as they can be decomposed."""
    for _ in range(MOST_ROUNDS):
        if not any(_is_missing(node, lowers) for node in graph.nodes):
            return graph
        graph = _once(graph, lowers)
    names = sorted({node.op.name for node in graph.nodes if _is_missing(node, lowers)})
    raise InternalError("decompose", f"the decompositions of {', '.join(names)} never end.")


def _once(graph: Graph, lowers: Callable[[Op], bool]) -> Graph:
    done: dict[Node, Node] = {i: i for i in graph.inputs}
    with blame() as put_down_to:
        for node in toposort([*graph.inputs, *graph.outputs]):
            if node in done:
                continue
            inputs = tuple(done[i] for i in node.inputs)
            if _is_missing(node, lowers):
                put_down_to(node.source)
                assert node.op.decompose is not None
                new = node.op.decompose(inputs, *node.params)
                if new.type != node.type:
                    raise InternalError(
                        "decompose", f"the op {node.op.name!r} gives {node.type}, its decomposition {new.type}."
                    )
                done[node] = new
            else:
                done[node] = rebuild(node, inputs)
    return Graph(graph.inputs, tuple(done[o] for o in graph.outputs))


def _is_missing(node: Node, lowers: Callable[[Op], bool]) -> bool:
    return node.op.decompose is not None and not lowers(node.op)
