"""Updates of slices: which of them replace a part of an input that the program replaces anyway.

Those write the slice into the input's memory. Of the others, the ones at static places become a `where`, which fuses with what is around.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from ...dtypes import bool_
from ...graph.graph import Graph, rebuild
from ...graph.node import ITEM, OPS, Node, constant, make, toposort


def updated_carries(node: Node) -> tuple[int, ...]:
    """The values that a loop carries in place: each step only updates slices of them, or leaves them as they are."""
    if node.op.name not in ("scan", "while_loop") or (node.op.name == "scan" and node.param("history")):
        return ()
    body, carried = node.param("body"), node.param("carried")
    return tuple(i for i in range(carried) if _chain(body.outputs[i], body.inputs[i]) is not None)


def _chain(output: Node, source: Node) -> list[Node] | None:
    """The updates that lead from one node to another; None if there is anything else in between."""
    found: list[Node] = []
    node = output
    while node is not source:
        if node.op.updates_input:
            found.append(node)
            node = node.inputs[0]
        elif node.op.derivative_marker:
            node = node.inputs[0]
        elif node.op is ITEM and node.param("index") in updated_carries(node.inputs[0]):
            node = node.inputs[0].inputs[node.param("index")]
        else:
            return None
    return found


def is_updated_from(output: Node, source: Node) -> bool:
    """Whether a value is another one with slices of it replaced."""
    return bool(_chain(output, source))


def spread_updates(graph: Graph, updates: Mapping[int, int]) -> Graph:
    """The graph with every static update as a `where`, unless it is done in place and touches less than half of the tensor.

    `updates`: output number -> number of the input that it replaces.
    """
    static = {n for n in graph.nodes if n.op.name == "update_slice" and not n.param("axes")}
    for output, source in updates.items() if static else ():
        in_place = _chain(graph.outputs[output], graph.inputs[source]) or ()
        static.difference_update(n for n in in_place if 2 * prod(n.inputs[1].shape) <= prod(n.shape))
    return _spread(graph, static) if static else graph


def _spread(graph: Graph, static: Iterable[Node]) -> Graph:
    chosen = set(static)
    done: dict[Node, Node] = {i: i for i in graph.inputs}
    for node in toposort([*graph.inputs, *graph.outputs]):
        if node not in done:
            inputs = tuple(done[i] for i in node.inputs)
            done[node] = _as_where(node, inputs) if node in chosen else rebuild(node, inputs)
    return Graph(graph.inputs, tuple(done[o] for o in graph.outputs))


def _as_where(node: Node, inputs: tuple[Node, ...]) -> Node:
    x, value = inputs
    starts, steps = node.get_params("starts", "steps")
    facts = zip(x.shape, value.shape, starts, steps, strict=True)
    widths = tuple((a, n - a - (m - 1) * s - 1, s - 1) if m else (n, 0, 0) for n, m, a, s in facts)
    written = make(OPS["pad"], (constant(True, bool_, value.shape),), (widths, False), node.source)
    zero = constant(0, value.dtype).param("value")
    spread = make(OPS["pad"], (value,), (widths, zero), node.source)
    return make(OPS["where"], (written, spread, x), (), node.source)
