"""Fold: scales and shifts of the channels after a convolution are folded into its filter and a bias.

Batch norm at inference is such a chain: (y - mean) * rsqrt(var + eps) * scale + shift. The filter is scaled instead, once for many
runs if the weights do not change, and the bias becomes part of the convolution's epilogue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from ...graph.graph import Graph, rebuild
from ...graph.node import OPS, Node, constant, make, toposort


def fold(graph: Graph) -> Graph:
    """The graph with such chains folded."""
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for i in node.inputs:
            users[i].append(node)
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op.name == "conv" and node.dtype.is_float:
            chain = _Chain(node)
            while len(users[chain.end]) == 1 and chain.end not in graph.outputs and chain.take(users[chain.end][0]):
                pass
            if chain.scale is not None:
                found[chain.end] = chain.folded()
    return Graph(graph.inputs, _replaced(graph.outputs, found)) if found else graph


def _replaced(outputs: Sequence[Node], found: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The outputs with nodes replaced, also inside other replacements, since convolutions follow each other."""
    done: dict[Node, Node] = {}
    for node in toposort(outputs, lambda n: (found[n],) if n in found else n.inputs):
        done[node] = done[found[node]] if node in found else rebuild(node, tuple(done[i] for i in node.inputs))
    return tuple(done[o] for o in outputs)


class _Chain:
    """A convolution, and the scale and shift of its channels so far."""

    def __init__(self, conv: Node) -> None:
        self.conv = self.end = conv
        self.scale: Node | None = None
        self.shift: Node | None = None

    def take(self, node: Node) -> bool:
        """Extend the chain by the user of its end, if that is one more scale or shift."""
        name = node.op.name
        if name not in ("add", "sub", "mul", "div") or (name in ("sub", "div") and node.inputs[0] is not self.end):
            return False
        other = node.inputs[1] if node.inputs[0] is self.end else node.inputs[0]
        value = self._by_filter(other)
        if value is None:
            return False
        if name in ("mul", "div"):
            one = make(OPS["div"], (constant(1, value.dtype, value.shape), value)) if name == "div" else value
            self.scale = one if self.scale is None else make(OPS["mul"], (self.scale, one))
            self.shift = None if self.shift is None else make(OPS["mul"], (self.shift, one))
        else:
            new = make(OPS["neg"], (value,)) if name == "sub" else value
            self.shift = new if self.shift is None else make(OPS["add"], (self.shift, new))
        self.end = node
        return True

    def _by_filter(self, node: Node) -> Node | None:
        """The value that a node broadcasts along all axes but the channels. It cannot depend on the end, which has only one user."""
        filters, rank = self.conv.shape[1], len(self.conv.shape)
        if node.op.name != "expand" or prod(node.inputs[0].shape) != filters:
            return None
        below = node.inputs[0]
        axis = 1 - (rank - len(below.shape))
        if axis < 0 or below.shape[axis] != filters:
            return None
        return make(OPS["reshape"], (below,), ((filters,),))

    def folded(self) -> Node:
        conv, scale = self.conv, self.scale
        assert scale is not None
        x, w = conv.inputs
        filters, rank = conv.shape[1], len(conv.shape)
        made = make(conv.op, (x, _scaled(w, scale)), conv.params, conv.source)
        if self.shift is None:
            return made
        bias = make(OPS["reshape"], (self.shift,), ((filters, *(1,) * (rank - 2)),))
        return make(OPS["add"], (made, make(OPS["expand"], (bias,), (conv.shape,))), (), self.end.source)


def _scaled(w: Node, scale: Node, axis: int = 0) -> Node:
    """A filter times one number for each position along an axis. Below a permute, so that the product has the layout of the filter."""
    if w.op.name == "permute":
        return make(OPS["permute"], (_scaled(w.inputs[0], scale, w.param("axes")[axis]),), w.params)
    column = tuple(size if a == axis else 1 for a, size in enumerate(w.shape))
    factor = make(OPS["expand"], (make(OPS["reshape"], (scale,), (column,)),), (w.shape,))
    return make(OPS["mul"], (w, factor))
