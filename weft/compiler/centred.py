"""Sums of differences from the mean are zero: the derivative of a variance asks for one, and it is a walk through all of memory.

The variance is a sum of squares of x - mean(x). Its derivative for the mean is a multiple of the sum of x - mean(x), which
is zero whatever x is, but for rounding.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from ..graph.node import CONST, Node, constant


def centred_sum(node: Node) -> Node | None:
    """Zero, for a sum of differences from the mean over the same axes, times what does not change along them."""
    if node.op.name != "sum" or not node.dtype.is_float:
        return None
    x, axes = node.inputs[0], frozenset(node.params[0])
    while (inner := _unscaled(x, axes)) is not None:
        x = inner
    if x.op.name == "sub" and _is_mean(x.inputs[1], x.inputs[0], axes):
        return constant(0, node.dtype, node.shape)
    return None


def _unscaled(node: Node, axes: Collection[int]) -> Node | None:
    """What the node is a multiple of, by something that does not change along the axes."""
    name, inputs = node.op.name, node.inputs
    if name == "neg" or (name == "add" and inputs[0] is inputs[1]):
        return inputs[0]
    if name in ("mul", "div") and _is_still(inputs[1], axes):
        return inputs[0]
    return inputs[1] if name == "mul" and _is_still(inputs[0], axes) else None


def _is_still(node: Node, axes: Collection[int]) -> bool:
    """Whether it is the same all along the axes."""
    if node.op is CONST:
        return True
    return node.op.name == "expand" and all(_size_before(node, axis) == 1 for axis in axes)


def _size_before(expanded: Node, axis: int) -> int:
    """The size along an axis of what was expanded."""
    shape = expanded.inputs[0].shape
    place = axis - (len(expanded.shape) - len(shape))
    return shape[place] if place >= 0 else 1


def _is_mean(node: Node, x: Node, axes: frozenset[int]) -> bool:
    """Whether each element is the mean of x over the axes, at its place."""
    if node.op.name != "expand":
        return False
    for axis, size in enumerate(x.shape):
        if _size_before(node, axis) != (1 if axis in axes else size):
            return False
    quotient = _unshaped(node.inputs[0])
    if quotient.op.name != "div" or quotient.inputs[1].op is not CONST:
        return False
    total, count = _unshaped(quotient.inputs[0]), quotient.inputs[1].params[0]
    same = total.op.name == "sum" and total.inputs[0] is x and frozenset(total.params[0]) == axes
    return same and float(count) == prod(x.shape[a] for a in axes)


def _unshaped(node: Node) -> Node:
    while node.op.name == "reshape":
        node = node.inputs[0]
    return node
