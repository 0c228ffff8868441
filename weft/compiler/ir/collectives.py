"""The collectives of a graph."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.graph import Graph
from ...graph.node import Node


def collectives(graph: Graph) -> Iterator[Node]:
    """The nodes that exchange values between processes, those in the bodies of control flow included."""
    waiting, seen = [graph], {graph}
    while waiting:
        for node in waiting.pop().nodes:
            if node.op.kind == "collective" and node.op.own_kernels:
                yield node
            inner = [p for p in node.params if isinstance(p, Graph) and p not in seen]
            waiting += inner
            seen.update(inner)
