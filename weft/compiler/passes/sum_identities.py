"""What is known of sums before anything is added up. Each is a walk through all of memory, so fewer of them are better.

The variance is a sum of squares of x - mean(x). Its derivative for the mean is a multiple of the sum of x - mean(x), which is zero
but for rounding if all x are finite, and else is not finite, as the mean is not: mean - mean is both, without a walk through memory.

A sum of multiples is the multiple of a sum, unless one of them overflows: `((x / x.max()) ** 2).sum()` is written so that it does not.
Such algebra is done only if the option `fast_math` allows it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import reduce
from math import isfinite, prod

from ...graph.node import CONST, OPS, Node, constant, make

FEW = 12  # nodes of a product that are looked at
CHEAP = frozenset(
    ("add", "sub", "mul", "div", "neg", "where", "cast", "le", "lt", "ge", "gt", "eq", "ne", "maximum", "minimum")
)


def centred_sum(node: Node) -> Node | None:
    """A sum of differences from the mean over the same axes, times what does not change along them: mean - mean, times that."""
    if node.op.name != "sum" or not node.dtype.is_float:
        return None
    x, axes = node.inputs[0], frozenset(node.params[0])
    factors: list[tuple[str, Node]] = []
    while (found := _unscaled(x, axes)) is not None:
        x, more = found
        factors += more
    if x.op.name != "sub" or not _is_mean(x.inputs[1], x.inputs[0], axes):
        return None
    mean = _beside(x.inputs[1], node)
    result = make(OPS["sub"], (mean, mean), (), node.source)
    for name, factor in reversed(factors):
        result = make(OPS[name], (result, _beside(factor, node)))
    return result


def scaled_sum(node: Node) -> Node | None:
    """A sum of multiples, by what does not change along its axes, as the multiple of a sum: with `fast_math` only.

    Not in 16 bits, where that often overflows, nor of nothing, which is zero however infinite the factor.
    """
    if node.op.name != "sum" or not node.dtype.is_float or node.dtype.is_half:
        return None
    if not prod(node.inputs[0].shape):
        return None
    product = _Product(frozenset(node.params[0]))
    product.take(node.inputs[0])
    if not product.moving or not (product.still or product.negative):
        return None
    rest = reduce(lambda a, b: make(OPS["mul"], (a, b)), product.moving)
    result = make(node.op, (rest,), node.params, node.source)
    for name, factor in product.still:
        result = make(OPS[name], (result, _beside(factor, node)))
    return make(OPS["neg"], (result,)) if product.negative else result


@dataclass
class _Product:
    """A product taken apart: what does not change along the axes of a sum, and what does."""

    axes: frozenset[int]
    still: list[tuple[str, Node]] = field(default_factory=list)  # to multiply by, or to divide by
    moving: list[Node] = field(default_factory=list)
    negative: bool = False
    seen: int = 0

    def take(self, node: Node) -> None:
        name, inputs = node.op.name, node.inputs
        self.seen += 1
        if _is_still(node, self.axes):
            self.still.append(("mul", node))
        elif self.seen > FEW or name not in ("neg", "mul", "div") or not all(map(_is_cheap, inputs)):
            self.moving.append(node)
        elif name == "neg":
            self.negative = not self.negative
            self.take(inputs[0])
        elif name == "mul":
            self.take(inputs[0])
            self.take(inputs[1])
        elif _is_still(inputs[1], self.axes):
            self.still.append(("div", inputs[1]))
            self.take(inputs[0])
        else:
            self.moving.append(node)


def _is_cheap(node: Node) -> bool:
    """Whether it may be computed again where a multiple of it was kept: a softmax would be exponentials again."""
    stack, seen = [node], {node}
    while stack:
        n = stack.pop()
        if n.op.kind == "elementwise" and prod(n.shape) == prod(node.shape) and n.op.name not in CHEAP:
            return False
        new = [i for i in n.inputs if i not in seen] if n.op.kind in ("elementwise", "move") else []
        seen.update(new)
        stack += new
        if len(seen) > 4 * FEW:
            return False
    return True


def _beside(factor: Node, total: Node) -> Node:
    """What is the same all along the axes of a sum, as something to multiply the sum by."""
    if factor.op is CONST:
        return constant(factor.params[0], total.dtype, total.shape)
    sizes = [_size_before(factor, axis) for axis in range(len(factor.shape)) if axis not in total.params[0]]
    inner = _unshaped(factor.inputs[0])
    column = inner if inner.shape == tuple(sizes) else make(OPS["reshape"], (inner,), (tuple(sizes),))
    return column if column.shape == total.shape else make(OPS["expand"], (column,), (total.shape,))


def _unscaled(node: Node, axes: Collection[int]) -> tuple[Node, list[tuple[str, Node]]] | None:
    """What the node is a multiple of, by something that does not change along the axes, and that, unless it leaves a zero as it is."""
    name, (a, *rest) = node.op.name, node.inputs or (node,)
    if name == "neg" or (name == "add" and a is rest[0]):
        return a, []
    if name not in ("mul", "div"):
        return None
    b = rest[0]
    if name == "mul" and not _is_still(b, axes):
        a, b = b, a
    if not _is_still(b, axes):
        return None
    return a, [] if b.op is CONST and _is_plain(b) else [(name, b)]


def _is_plain(number: Node) -> bool:
    value = float(number.params[0])
    return isfinite(value) and value != 0


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
