"""Decompose: ops without a lowering rule in the backend are replaced by the decompositions that they declare."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...errors import InternalError
from ...graph.graph import Graph, rebuild
from ...graph.node import Node, Type, blame, item, toposort

MAX_ROUNDS = 100  # a decomposition may contain ops that must be decomposed themselves


def decompose(graph: Graph, lowers: Callable[[Node], bool]) -> Graph:
    """The graph without ops that the backend does not have, as far as they can be decomposed."""
    for _ in range(MAX_ROUNDS):
        if not any(_is_missing(node, lowers) for node in graph.nodes):
            return graph
        graph = _once(graph, lowers)
    names = sorted({node.op.name for node in graph.nodes if _is_missing(node, lowers)})
    raise InternalError("decompose", f"the decompositions of {', '.join(names)} never end.")


def _once(graph: Graph, lowers: Callable[[Node], bool]) -> Graph:
    done: dict[Node, Node] = {i: i for i in graph.inputs}
    with blame() as put_down_to:
        for node in toposort([*graph.inputs, *graph.outputs]):
            if node in done:
                continue
            if _is_missing(node, lowers):
                put_down_to(node.source)
                _decomposed(node, done)
            else:
                done[node] = rebuild(node, tuple(done[i] for i in node.inputs))
    return Graph(graph.inputs, tuple(done[o] for o in graph.outputs))


def _decomposed(node: Node, done: dict[Node, Node]) -> None:
    """Record the replacement of a node or, if it has several results, of each of them."""
    assert node.op.decompose is not None
    new = node.op.decompose(tuple(done[i] for i in node.inputs), *node.params)
    made, wanted = ((new,), (node.type,)) if isinstance(new, Node) else (new, node.outputs)
    if tuple(n.type for n in made) != tuple(wanted):
        raise InternalError(
            "decompose",
            f"the op {node.op.name!r} gives {_types(wanted)}, its decomposition {_types(n.type for n in made)}.",
        )
    if isinstance(new, Node):
        done[node] = new
    else:
        done |= {item(node, i): part for i, part in enumerate(made)}


def _types(types: Iterable[Type]) -> str:
    return ", ".join(map(str, types))


def _is_missing(node: Node, lowers: Callable[[Node], bool]) -> bool:
    return node.op.decompose is not None and not lowers(node)
