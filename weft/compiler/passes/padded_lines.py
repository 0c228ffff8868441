"""Padded lines: values computed from a padded product are computed for whole padded lines.

Of a product or convolution whose lines were padded (product_padding.py, aligned_channels.py) a slice is read, and values computed from it
are padded again for the next product. Elementwise ops need neither: they can compute whole lines. Reductions along a line then skip its end,
and zeros are written there where padding requires them. So a softmax of logits and its gradient have one shape, and are one kernel; the bias
and the activation between two convolutions are the epilogue of the first.
"""

from __future__ import annotations

from math import inf, prod

from ...dtypes import int32
from ...graph.graph import Graph, rebuild
from ...graph.node import CONST, OPS, Node, constant, make
from ...graph.rewrite import transform
from .graph_builders import move
from .product_padding import WORD

DEPTH = 48  # ops between a product and the ops that are replaced
IDENTITY = {"sum": 0.0, "max": -inf, "min": inf}


def padded_lines(graph: Graph) -> Graph:
    """The graph with reductions and paddings of the first part of lines replaced by those of whole lines."""
    known: dict[tuple[Node, int], Node | None] = {}

    def visit(node: Node, inputs: tuple[Node, ...]) -> Node:
        new = rebuild(node, inputs)
        if not new.inputs or not new.dtype.is_float or not new.inputs[0].shape:
            return new
        x, last = new.inputs[0], len(new.inputs[0].shape) - 1
        if new.op.name == "pad" and _adds_to_lines(new):
            whole = _whole(x, new.shape[-1], known)
            return new if whole is None else _ended(whole, x.shape[-1], new.param("value"))
        if new.op.name in IDENTITY and new.param("axes") == (last,):
            size = _size(x, DEPTH)
            whole = None if size is None else _whole(x, size, known)
            if whole is not None:
                return make(new.op, (_ended(whole, x.shape[-1], IDENTITY[new.op.name]),), new.params, new.source)
        return new

    return transform(graph, visit)


def _adds_to_lines(pad: Node) -> bool:
    """Whether it pads the end of lines, and nothing else."""
    *others, (before, after, between) = pad.param("widths")
    return not before and not between and 0 < after < WORD and not any(any(widths) for widths in others)


def _first_of_line(node: Node) -> Node | None:
    """The padded lines that a slice is the first part of."""
    if node.op.name != "slice":
        return None
    x = node.inputs[0]
    starts, stops, steps = node.get_params("starts", "stops", "steps")
    cuts_lines = stops[:-1] == x.shape[:-1] and 0 < x.shape[-1] - stops[-1] < WORD
    return x if cuts_lines and not any(starts) and set(steps) == {1} else None


def _size(node: Node, depth: int) -> int | None:
    """The size of the padded lines that a value is computed from."""
    lines = _first_of_line(node)
    if lines is not None:
        return lines.shape[-1]
    if not depth or not node.shape or not _keeps_lines(node):
        return None
    same = (i for i in node.inputs if i.shape and i.shape[-1] == node.shape[-1])
    return next((size for i in same if (size := _size(i, depth - 1)) is not None), None)


def _keeps_lines(node: Node) -> bool:
    return node.op.kind == "elementwise" or node.op.name in ("reshape", "expand")


def _whole(node: Node, size: int, known: dict[tuple[Node, int], Node | None], depth: int = DEPTH) -> Node | None:
    """The value for lines of this size: the same in the first part of each line, unspecified after it. None if it cannot be computed for them."""
    key = node, size
    if key not in known:
        known[key] = _made_whole(node, size, known, depth) if depth else None
    return known[key]


def _made_whole(node: Node, size: int, known: dict[tuple[Node, int], Node | None], depth: int) -> Node | None:
    lines = _first_of_line(node)
    if lines is not None:
        return lines if lines.shape[-1] == size else None
    shape = (*node.shape[:-1], size)
    if node.op.name == "permute" and node.inputs[0].op is CONST:
        return make(CONST, (), node.inputs[0].replace_params(shape=shape), node.source)
    if node.op.name == "permute" and node.inputs[0].op.name == "expand":
        return _whole(_spread(node), size, known, depth - 1)
    if prod(node.shape) == node.shape[-1] and node.op is not CONST and _size(node, depth) is None:
        # A single line that all lines are computed with, such as a bias.
        return move("pad", node, ((0, 0, 0),) * (len(shape) - 1) + ((0, size - node.shape[-1], 0),), 0.0)
    if node.op is CONST:
        return make(CONST, (), node.replace_params(shape=shape), node.source)
    if node.op.name == "iota":
        return make(node.op, (), node.replace_params(n=size), node.source)
    if not node.inputs or not _keeps_lines(node):
        return None
    x = node.inputs[0]
    if node.op.name == "expand" and x.shape[-1] == 1:
        return move("expand", x, shape)
    if node.op.kind != "elementwise" and x.shape[-1:] != node.shape[-1:]:
        return None
    inputs = [_whole(i, size, known, depth - 1) for i in node.inputs]
    if any(i is None for i in inputs):
        return None
    params = node.params if node.op.kind == "elementwise" else (shape,)
    return make(node.op, tuple(i for i in inputs if i is not None), params, node.source)


def _spread(node: Node) -> Node:
    """A permuted expand as an expand of what is permuted: of a line, such as the bias of a convolution."""
    expand = node.inputs[0]
    x = expand.inputs[0]
    x = move("reshape", x, (*(1,) * (len(expand.shape) - len(x.shape)), *x.shape))
    return move("expand", move("permute", x, node.param("axes")), node.shape)


def _ended(lines: Node, count: int, value: float) -> Node:
    """Lines with one value after this many elements. Below reshapes, in the shape of the computation."""
    if lines.op.name == "reshape" and lines.inputs[0].shape[-1:] == lines.shape[-1:]:
        return move("reshape", _ended(lines.inputs[0], count, value), lines.shape)
    size, rank = lines.shape[-1], len(lines.shape)
    place = move("reshape", make(OPS["iota"], (), (size, int32)), (*[1] * (rank - 1), size))
    inside = make(OPS["lt"], (move("expand", place, lines.shape), constant(count, int32, lines.shape)))
    return make(OPS["where"], (inside, lines, constant(value, lines.dtype, lines.shape)))
