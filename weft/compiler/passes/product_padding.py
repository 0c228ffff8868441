"""Product padding: large products in 16 bits get rows, columns and terms of zeros, so that every line begins at a multiple of 16 bytes.

Tensor cores load 16 bytes at a time; a product with unaligned lines takes several times as long. A vocabulary of 50,257 tokens becomes one
of 50,264: the logits and their gradients have longer lines, of which other kernels read the first part.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...graph.node import OPS, Node, Shape, make
from ..ir.kernel import is_widening
from ..thresholds import thresholds
from .graph_builders import cast, move

WORD = 16  # bytes


def aligned_sizes(x: Node, y: Node, a: str, b: str, sides: Sequence[Sequence[str]]) -> dict[str, int]:
    """The sizes of the axes of a product of x and y, some of them padded. `a` and `b` name their axes, `sides` those of rows, terms and columns."""
    sizes = dict(zip(a + b, x.shape + y.shape, strict=True))
    stored = {stored_value(x).dtype, stored_value(y).dtype}
    if not all(dtype.is_half for dtype in stored) or prod(sizes.values()) < thresholds.gpu_padded_product:
        return sizes
    word = WORD // next(iter(stored)).itemsize
    lines = {
        _line(x, a),
        _line(y, b),
        *sides[-1][-1:],
    }  # the axes along which operands and result are contiguous in memory
    odd = {c for side in sides if prod(sizes[c] for c in side) % word for c in side}
    return {c: size + -size % word if c in lines & odd else size for c, size in sizes.items()}


def _line(x: Node, letters: str) -> str:
    """The name of the axis along which x is contiguous in memory."""
    order, x = list(letters), stored_value(x)
    while x.op.name == "permute":
        order, x = [order[x.param("axes").index(i)] for i in range(len(order))], stored_value(x.inputs[0])
    return order[-1] if order else ""


def padded_to(x: Node, shape: Shape) -> Node:
    """x with zeros after the elements of each axis. Below permutations and casts to wider types, so that the narrow value is stored, once
    for all of its readers."""
    if x.shape == shape:
        return x
    if is_widening(x):
        return cast(padded_to(x.inputs[0], shape), x.dtype)
    if x.op.name == "permute":
        axes = x.param("axes")
        return move("permute", padded_to(x.inputs[0], tuple(shape[axes.index(i)] for i in range(len(axes)))), axes)
    widths = tuple((0, after - before, 0) for before, after in zip(x.shape, shape, strict=True))
    return make(OPS["pad"], (x,), (widths, 0.0))


def first_part(x: Node, shape: Shape) -> Node:
    """The first part of x along each axis, of this shape."""
    return x if x.shape == shape else make(OPS["slice"], (x,), ((0,) * len(shape), shape, (1,) * len(shape)))


def stored_value(x: Node) -> Node:
    """The value in memory: a product of float32 may read a rounded one."""
    return x.inputs[0] if x.op.name == "cast" and x.inputs[0].dtype.is_half else x
