"""Padded lines: values computed from a padded product are computed for whole padded lines.

Of a product or convolution whose lines were padded (product_padding.py, aligned_channels.py) a slice is read, and values computed from it
are padded again for the next product. Elementwise ops need neither: they can compute whole lines. Reductions along a line then skip its end,
and zeros are written there where padding requires them. So a softmax of logits and its gradient have one shape, and are one kernel; the bias
and the activation between two convolutions are the epilogue of the first.
"""

from __future__ import annotations

from math import inf, prod

from ...dtypes import int32
from ...graph.graph import Graph, rebuild, substitute
from ...graph.node import CONST, OPS, Node, constant, make
from ...graph.rewrite import transform
from .graph_builders import move
from .product_padding import WORD, first_part

DEPTH = 48  # ops between a product and the ops that are replaced
IDENTITY = {"sum": 0.0, "max": -inf, "min": inf}


def padded_lines(graph: Graph) -> Graph:
    """The graph with reductions and paddings of the first part of lines replaced by those of whole lines."""
    lines = _PaddedLines()
    return Graph(graph.inputs, substitute(transform(graph, lines.visit).outputs, lines.first_parts))


class _PaddedLines:
    """What is known of the values of a graph while it is rewritten."""

    def __init__(self) -> None:
        self.sizes: dict[Node, tuple[int, int] | None] = {}
        self.whole: dict[tuple[Node, int], Node | None] = {}
        # Values that were padded, as the first part of the padded ones: only these are stored.
        self.first_parts: dict[Node, Node] = {}

    def visit(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        new = rebuild(node, inputs)
        self._padded_size(new)  # inputs come first, so the recursion is never deep
        if not new.inputs or not new.dtype.is_float or not new.inputs[0].shape:
            return new
        x, last = new.inputs[0], len(new.inputs[0].shape) - 1
        if new.op.name == "pad":
            return self._padded(new)
        if new.op.name in IDENTITY and new.param("axes") == (last,):
            size = self._padded_size(x)
            whole = None if size is None else self._whole(x, size)
            if whole is not None:
                masked = _masked_after(whole, x.shape[-1], IDENTITY[new.op.name])
                return make(new.op, (masked,), new.params, new.source)
        return new

    def _padded(self, pad: Node) -> Node:
        """A padding as the whole lines of what is padded, where there are some."""
        x, size = pad.inputs[0], pad.shape[-1]
        whole = self._whole(x, size) if _adds_to_lines(pad) and self._padded_size(x) == size else None
        if whole is None:
            return _padded_below_cast(pad)
        padded = self.whole[x, size] = _masked_after(whole, x.shape[-1], pad.param("value"))
        self.first_parts[x] = first_part(padded, x.shape)
        return padded

    def _padded_size(self, node: Node) -> int | None:
        """The size of the padded lines that a value is computed from."""
        found = self._size_and_distance(node)
        return found[0] if found and found[1] <= DEPTH else None

    def _size_and_distance(self, node: Node) -> tuple[int, int] | None:
        """The same, and how many ops lie between."""
        if node not in self.sizes:
            lines, found = _first_of_line(node), None
            if lines is not None:
                found = lines.shape[-1], 0
            elif node.shape and _keeps_lines(node):
                same = (self._size_and_distance(i) for i in node.inputs if i.shape[-1:] == node.shape[-1:])
                found = next(((size, distance + 1) for size, distance in filter(None, same)), None)
            self.sizes[node] = found
        return self.sizes[node]

    def _whole(self, node: Node, size: int, depth: int = DEPTH) -> Node | None:
        """The value for lines of this size: the same in the first part of each line, unspecified after it. None if it cannot be
        computed for them."""
        key = node, size
        if key not in self.whole:
            self.whole[key] = self._made_whole(node, size, depth) if depth else None
        return self.whole[key]

    def _made_whole(self, node: Node, size: int, depth: int) -> Node | None:
        lines = _first_of_line(node)
        if lines is not None:
            return lines if lines.shape[-1] == size else None
        shape = (*node.shape[:-1], size)
        if node.op.name == "permute" and node.inputs[0].op is CONST:
            return make(CONST, (), node.inputs[0].replace_params(shape=shape), node.source)
        if node.op.name == "permute" and node.inputs[0].op.name == "expand":
            return self._whole(_permuted_below_expand(node), size, depth - 1)
        if node.op is CONST:
            return make(CONST, (), node.replace_params(shape=shape), node.source)
        if node.op.name == "iota":
            return make(node.op, (), node.replace_params(n=size), node.source)
        if prod(node.shape) == node.shape[-1] and self._padded_size(node) is None and not _is_numbering(node):
            # A single line that all lines are computed with, such as a bias.
            return move("pad", node, ((0, 0, 0),) * (len(shape) - 1) + ((0, size - node.shape[-1], 0),), 0.0)
        if not node.inputs or not _keeps_lines(node):
            return None
        x = node.inputs[0]
        if node.op.name == "expand" and x.shape[-1] == 1:
            return move("expand", x, shape)
        if node.op.kind != "elementwise" and x.shape[-1:] != node.shape[-1:]:
            return None
        inputs = [self._whole(i, size, depth - 1) for i in node.inputs]
        if any(i is None for i in inputs):
            return None
        params = node.params if node.op.kind == "elementwise" else (shape,)
        return make(node.op, tuple(i for i in inputs if i is not None), params, node.source)


def _adds_to_lines(pad: Node) -> bool:
    """Whether it pads the end of lines, and nothing else."""
    *others, (before, after, between) = pad.param("widths")
    return not before and not between and 0 < after < WORD and not any(any(widths) for widths in others)


def _padded_below_cast(pad: Node) -> Node:
    """The padding of a converted value, such as a weight, before it is converted: the narrow value is stored once, padded."""
    x = pad.inputs[0]
    adds_to_ends = all(not before and not between and after < WORD for before, after, between in pad.param("widths"))
    if x.op.name != "cast" or not x.inputs[0].dtype.is_float or not adds_to_ends:
        return pad
    return make(x.op, (make(pad.op, x.inputs, pad.params, pad.source),), x.params, x.source)


def _first_of_line(node: Node) -> Node | None:
    """The padded lines that a slice is the first part of."""
    if node.op.name != "slice":
        return None
    x = node.inputs[0]
    starts, stops, steps = node.get_params("starts", "stops", "steps")
    cuts_lines = stops[:-1] == x.shape[:-1] and 0 < x.shape[-1] - stops[-1] < WORD
    return x if cuts_lines and not any(starts) and set(steps) == {1} else None


def _keeps_lines(node: Node) -> bool:
    """Whether lines of another length could be computed. Not by ops that fail for some integers: what is after a line might be one."""
    fails = node.op.can_fail and not node.dtype.is_float
    return (node.op.kind == "elementwise" and not fails) or node.op.name in ("reshape", "expand")


def _is_numbering(node: Node) -> bool:
    """Whether it counts 0, 1, 2, ..., which costs less to go on with than to pad."""
    return node.op.name == "iota" or (node.op.name == "reshape" and _is_numbering(node.inputs[0]))


def _permuted_below_expand(node: Node) -> Node:
    """A permuted expand as an expand of what is permuted: of a line, such as the bias of a convolution."""
    expand = node.inputs[0]
    x = expand.inputs[0]
    x = move("reshape", x, (*(1,) * (len(expand.shape) - len(x.shape)), *x.shape))
    return move("expand", move("permute", x, node.param("axes")), node.shape)


def _masked_after(lines: Node, count: int, value: float) -> Node:
    """Lines with one value after this many elements. Below reshapes, in the shape of the computation."""
    if lines.op.name == "reshape" and lines.inputs[0].shape[-1:] == lines.shape[-1:]:
        return move("reshape", _masked_after(lines.inputs[0], count, value), lines.shape)
    size, rank = lines.shape[-1], len(lines.shape)
    place = move("reshape", make(OPS["iota"], (), (size, int32)), (*[1] * (rank - 1), size))
    inside = make(OPS["lt"], (move("expand", place, lines.shape), constant(count, int32, lines.shape)))
    return make(OPS["where"], (inside, lines, constant(value, lines.dtype, lines.shape)))
