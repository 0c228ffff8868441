"""Sums over processes in the layout that their operands have in memory.

A sum over processes is elementwise, so it commutes with the order of axes. The gradient of a filter comes with its axes in the order of the
convolution, and the filter is stored in that order, too. A permute between the two would write it and read it again with strides.
"""

from __future__ import annotations

from ...graph.graph import Graph, rebuild
from ...graph.node import ITEM, Node
from ...graph.rewrite import transform
from .graph_builders import move

Axes = tuple[int, ...]


def collective_layout(graph: Graph) -> Graph:
    """The graph with permutes of the operands of all-reduces moved behind them."""
    if not any(_combines_elements(node) for node in graph.nodes):
        return graph
    orders: dict[
        Node, list[Axes | None]
    ] = {}  # of the operands of each bucket: two of them may become one, with permutes of its results

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        if node.op is ITEM and node.inputs[0] in orders:
            new = rebuild(node, inputs)
            axes = orders[node.inputs[0]][node.param("index")]
            return new if axes is None else move("permute", new, axes)
        if not _combines_elements(node):
            return rebuild(node, inputs)
        axes_of = [x.param("axes") if x.op.name == "permute" else None for x in inputs]
        sources = (x if axes is None else x.inputs[0] for x, axes in zip(inputs, axes_of, strict=True))
        new = rebuild(node, tuple(sources))
        if node.outputs:
            orders[node] = axes_of
            return new
        return new if axes_of[0] is None else move("permute", new, axes_of[0])

    return transform(graph, visit)


def _combines_elements(node: Node) -> bool:
    return node.op.name in ("all_reduce", "all_reduce_bucket")
