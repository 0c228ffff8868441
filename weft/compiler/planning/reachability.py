"""A fast test of whether one node depends on another: most dependences run through a longest path of the graph.

In a deep network, the backward pass reads values of early layers again, with all later layers in between. A search for every such
pair would be quadratic in the depth.
"""

from __future__ import annotations

from ...graph.graph import Graph
from ...graph.node import Node


class Spine:
    """A longest path of a graph, and the position of every node relative to it.

    `b` depends on `a` if `before[a] <= after[b]`. Otherwise it may still do so, through nodes that are not on the path.
    """

    def __init__(self, graph: Graph) -> None:
        self.depth = depth = dict[Node, int]()  # the length of the longest path from a leaf
        for node in graph.nodes:
            depth[node] = 1 + max((depth[i] for i in node.inputs), default=-1)
        path = set[Node]()
        here: Node | None = max(depth, key=depth.__getitem__, default=None)
        while here is not None:
            path.add(here)
            here = max(here.inputs, key=depth.__getitem__, default=None)
        never = len(graph.nodes)
        self.after: dict[Node, int] = {}  # the last place of the path from which the node is reached
        self.before = dict.fromkeys(graph.nodes, never)  # the first place of the path that is reached from the node
        for node in graph.nodes:
            below = max((self.after[i] for i in node.inputs), default=-1)
            self.after[node] = depth[node] if node in path else below
        for node in reversed(graph.nodes):
            if node in path:
                self.before[node] = depth[node]
            for i in node.inputs:
                self.before[i] = min(self.before[i], self.before[node])
