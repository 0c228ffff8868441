"""Row chunks: logits of a large vocabulary are never stored whole.

The last product of a language model makes a row of logits for each token, tens of thousands of numbers wide. The following computation, the
cross entropy and its gradient, treats each row independently, up to sums over rows (the gradient of the weights) and small values for each
row (its loss, the gradient of the hidden state). So all of it is computed chunk by chunk in a scan, forward and backward together, and the
sums are carried.

    logits = h @ W                      for each chunk of rows of h and of the labels:
    loss = f(logits, labels)                logits = h @ W
    dlogits = g(logits, labels)   ->        loss, dlogits = f(logits, labels), g(logits, labels)
    dh, dW = dlogits @ W', h' @ dlogits     dh, dW = dlogits @ W', dW + h' @ dlogits
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import Any

from ...graph.graph import Graph, close, substitute
from ...graph.node import CONST, OPS, Node, Shape, Type, item, make, placeholder
from ...records import dataclass
from ..thresholds import thresholds
from .graph_builders import move

STAND_IN = 1 << 20  # placeholders with numbers from here on are the values that a body reads
WIDENING = 8  # the least ratio of a product's width to the length of its sums
MOST_PRODUCTS = 4  # in a region: one forward, two backward, and one more


def row_chunks(graph: Graph) -> Graph:
    """The graph with every wide product, and all that depends on it row by row, in chunks of its rows."""
    for product in graph.nodes:
        if _is_wide(product):
            found = _in_chunks(graph, product)
            if found is not None:
                return row_chunks(found)
    return graph


def _is_wide(node: Node) -> bool:
    """Whether it is a product of many rows, large, and much wider than what it sums over."""
    if node.op.name != "contract" or not node.dtype.is_float:
        return False
    a, b, out = node.get_params("a", "b", "out")
    if not out or out[0] != a[:1] or out[0] in b or out[-1] not in b or out[-1] in a or node.shape[0] < 2:
        return False
    summed = prod(size for letter, size in zip(a, node.inputs[0].shape, strict=True) if letter not in out)
    return node.shape[-1] >= WIDENING * summed and _bytes(node) > thresholds.row_chunk_bytes


def _bytes(node: Node) -> int:
    return prod(node.shape) * node.dtype.itemsize


# --- the region ---------------------------------------------------------------------------------------------------------------------


def _region(graph: Graph, product: Node, users: dict[Node, set[Node]]) -> set[Node]:
    """All nodes between a product and the last readers of values of its size."""
    below, by_rows = {product}, {product}
    for node in graph.nodes:
        if not below.isdisjoint(node.inputs):
            below.add(node)
            if not by_rows.isdisjoint(node.inputs) and not _sums_rows(node):
                by_rows.add(node)
    large = {n for n in by_rows if 2 * prod(n.shape) >= prod(product.shape)}
    region: set[Node] = set()
    for node in reversed(graph.nodes):
        if node in below and (node in large or not large.isdisjoint(node.inputs) or not region.isdisjoint(users[node])):
            region.add(node)
    return region


def _users(graph: Graph) -> dict[Node, set[Node]]:
    users: dict[Node, set[Node]] = {n: set() for n in graph.nodes}
    for node in graph.nodes:
        for i in node.inputs:
            users[i].add(node)
    return users


def _in_chunks(graph: Graph, product: Node) -> Graph | None:
    """The graph with the region of a product as a scan; None if it is not computed row by row."""
    users = _users(graph)
    region = _region(graph, product, users)
    if sum(n.op.name == "contract" for n in region) > MOST_PRODUCTS:
        return None
    chunk = _RowChunk(region, _count(product), _bytes(product) // 8)
    exits = [n for n in graph.nodes if n in region and (n in graph.outputs or not users[n] <= region)]
    sums = [n for n in exits if _sums_rows(n)]
    rows = [n for n in exits if n not in sums]
    if any(_sums_rows(n) and users[n] & region for n in region) or any(_bytes(n) > chunk.large for n in rows):
        return None
    try:
        steps = [chunk.sum(n) for n in sums]
        stacked = [chunk.rows(n) for n in rows]
    except _NotByRows:
        return None
    scan = chunk.scan(sums, steps, stacked, product)
    found = {n: item(scan, i) for i, n in enumerate(sums)}
    found |= {n: move("reshape", item(scan, len(sums) + i), n.shape) for i, n in enumerate(rows)}
    return Graph(graph.inputs, substitute(graph.outputs, found))


def _count(product: Node) -> int:
    """How many chunks: the least number that divides the rows and makes them small enough."""
    rows = product.shape[0]
    divisors = [k for k in range(2, rows + 1) if rows % k == 0]
    return next((k for k in divisors if _bytes(product) // k <= thresholds.row_chunk_bytes), rows)


def _sums_rows(node: Node) -> bool:
    """Whether it sums over all rows of its inputs."""
    if node.op.name == "sum":
        return 0 in node.param("axes")
    if node.op.name == "contract":
        a, b, out = node.get_params("a", "b", "out")
        return a[:1] == b[:1] and a[:1] not in out
    return False


# --- its body -----------------------------------------------------------------------------------------------------------------------


class _NotByRows(Exception):
    """Raised if an op needs rows outside of its chunk."""


@dataclass
class _RowChunk:
    """Writes the ops of a region for a chunk of the rows of their inputs: the first axis of every value is cut."""

    region: set[Node]
    count: int
    large: int  # bytes: larger values that are cheap are computed in each chunk, not before the scan
    done: dict[Node, Node] = field(default_factory=dict)  # the rows of each value
    sequences: dict[Node, Node] = field(
        default_factory=dict
    )  # values from outside of which the body reads a chunk of rows, and the placeholders of those
    constants: dict[Node, Node] = field(
        default_factory=dict
    )  # values from outside that the body reads whole, and their placeholders

    def scan(self, sums: list[Node], steps: list[Node], stacked: list[Node], product: Node) -> Node:
        """The loop over all chunks: it carries the sums, and stacks the rows."""
        carries = [placeholder(STAND_IN - 1 - i, n.type) for i, n in enumerate(sums)]
        added = [make(OPS["add"], (c, s), (), s.source) for c, s in zip(carries, steps, strict=True)]
        body = close([*carries, *self.sequences.values(), *self.constants.values()], [*added, *stacked])
        zeros = [make(CONST, (), (0.0, n.dtype, n.shape)) for n in sums]
        cut = [move("reshape", n, (self.count, *self._cut(n.shape))) for n in self.sequences]
        params = (body, len(sums), len(cut), self.count, False, False)
        return make(OPS["scan"], (*zeros, *cut, *self.constants), params, product.source)

    def sum(self, node: Node) -> Node:
        """The contribution of a chunk to a sum over all rows."""
        return make(node.op, tuple(self.rows(i) for i in node.inputs), node.params, node.source)

    def rows(self, node: Node) -> Node:
        """The rows of a value that belong to the chunk."""
        if node not in self.done:
            self.done[node] = self._rows(node, self._cut(node.shape))
        return self.done[node]

    def _rows(self, node: Node, shape: Shape) -> Node:
        if node in self.region or self._is_cheap(node):
            try:
                inputs, params = self._written(node, shape)
                return make(node.op, inputs, params, node.source)
            except _NotByRows:
                if node in self.region:
                    raise
        return self._stand_in(self.sequences, node, shape)

    def whole(self, node: Node) -> Node:
        """A value that is not cut."""
        if node in self.region:
            raise _NotByRows
        if node.op.kind == "leaf" and not node.abstract:
            return node
        if node.op.kernel == "view":
            return make(node.op, (self.whole(node.inputs[0]),), node.params, node.source)
        if node not in self.constants:
            self._stand_in(self.constants, node, node.shape)
        return self.constants[node]

    def _stand_in(self, kept: dict[Node, Node], node: Node, shape: Shape) -> Node:
        number = STAND_IN + len(self.sequences) + len(self.constants)
        kept[node] = placeholder(number, Type(shape, node.dtype))
        return kept[node]

    def _cut(self, shape: Shape) -> Shape:
        if not shape or shape[0] % self.count:
            raise _NotByRows
        return (shape[0] // self.count, *shape[1:])

    def _is_cheap(self, node: Node) -> bool:
        """Whether its rows are recomputed, not read."""
        if node.op is CONST or node.op.name == "expand":
            return True
        return (
            (node.op.kind == "elementwise" or node.op.kernel == "view")
            and not node.op.can_fail
            and _bytes(node) > self.large
        )

    def _written(self, node: Node, shape: Shape) -> tuple[tuple[Node, ...], tuple[Any, ...]]:
        """The inputs and parameters of an op for the rows of a chunk."""
        name, inputs = node.op.name, node.inputs
        if node.op is CONST:
            return (), node.replace_params(shape=shape)
        if node.op.kind == "elementwise" and all(i.shape == node.shape for i in inputs):
            return tuple(map(self.rows, inputs)), node.params
        if name == "expand":
            x = inputs[0]
            return ((self.rows if len(x.shape) == len(shape) and x.shape[0] > 1 else self.whole)(x),), (shape,)
        if name == "reshape":
            return (self.rows(inputs[0]),), (shape,)
        if (name == "permute" and node.param("axes")[0] == 0) or (node.op.kind == "reduce" and 0 not in _axes(node)):
            return (self.rows(inputs[0]),), node.params
        if name == "slice" and (0, inputs[0].shape[0], 1) == tuple(p[0] for p in node.params):
            stops = (shape[0], *node.param("stops")[1:])
            return (self.rows(inputs[0]),), node.replace_params(stops=stops)
        if name == "pad" and not any(node.param("widths")[0]):
            return (self.rows(inputs[0]),), node.params
        if name == "contract":
            return self._operands(node), node.params
        if name == "gather" and 0 in node.param("axes") and inputs[0].shape[0] == node.shape[0]:
            first = node.param("axes").index(0)
            indices = [self._numbers(x) if i == first else self.rows(x) for i, x in enumerate(inputs[1:])]
            return (self.rows(inputs[0]), *indices), node.params
        raise _NotByRows

    def _operands(self, node: Node) -> tuple[Node, ...]:
        """The operands of a product: a chunk of those that have its rows, the others whole."""
        *names, out = node.get_params("a", "b", "out")
        if any(out[0] in letters[1:] for letters in names):
            raise _NotByRows
        return tuple(
            (self.rows if letters[0] == out[0] else self.whole)(x)
            for letters, x in zip(names, node.inputs, strict=True)
        )

    def _numbers(self, node: Node) -> Node:
        """Row numbers, counted from the start of the chunk."""
        shape = self._cut(node.shape)
        if node.op.name == "iota":
            return make(node.op, (), node.replace_params(n=shape[0]), node.source)
        if node.op.name in ("reshape", "expand") and (x := node.inputs[0]).shape[0] == node.shape[0]:
            return make(node.op, (self._numbers(x),), (shape,), node.source)
        raise _NotByRows


def _axes(node: Node) -> tuple[int, ...]:
    axes: tuple[int, ...] = node.param("axes") if "axes" in node.op.param_index else (node.param("axis"),)
    return axes
