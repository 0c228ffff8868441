"""Identities of sums. Every sum reads all of its operand from memory, so fewer sums are faster.

The variance is a sum of squares of x - mean(x). Its derivative for the mean is a multiple of the sum of x - mean(x), which is zero
except for rounding if all x are finite, and otherwise not finite, as the mean. mean - mean is both, and reads no memory.

A sum of multiples is the multiple of a sum, unless one of them overflows: `((x / x.max()) ** 2).sum()` is written so that it does not.
So this algebra is applied only with the option `fast_math`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from functools import reduce
from math import isfinite, prod

from ...graph.node import CONST, OPS, Node, constant, make
from ...graph.rewrite import rule
from ...records import dataclass
from ..ir.window_ops import IN_RANGE
from .graph_builders import const_value

FEW = 12  # nodes of a product that are examined
CHEAP = 3  # the cost, in additions, up to which an op may be recomputed: that of a division


@rule("sum")
def centred_sum(node: Node) -> Node | None:
    """A sum of differences from the mean over the same axes, times factors that are invariant along them: mean - mean, times those."""
    if not node.dtype.is_float:
        return None
    x, axes = node.inputs[0], frozenset(node.param("axes"))
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


@rule("sum")
def scaled_sum(node: Node) -> Node | None:
    """Factors that are invariant along the axes of a sum are multiplied after it: with `fast_math` only.

    Not in 16 bits, where sums often overflow, nor for empty sums, which are zero even if a factor is infinite.
    """
    if not node.dtype.is_float or node.dtype.is_half:
        return None
    if not prod(node.inputs[0].shape):
        return None
    product = _Product(frozenset(node.param("axes")))
    product.take(node.inputs[0])
    if not product.varying or not (product.invariant or product.negative):
        return None
    rest = reduce(lambda a, b: make(OPS["mul"], (a, b)), product.varying)
    result = make(node.op, (rest,), node.params, node.source)
    for name, factor in product.invariant:
        result = make(OPS[name], (result, _beside(factor, node)))
    return make(OPS["neg"], (result,)) if product.negative else result


@rule("sum")
def one_hot_sum(node: Node) -> Node | None:
    """A sum over rows that are zero except for one element: that element, if it does not depend on its position."""
    x, axes = node.inputs[0], node.param("axes")
    negative = x.op.name == "neg"
    where = x.inputs[0] if negative else x
    if where.op.name != "where" or len(axes) != 1 or not node.dtype.is_float:
        return None
    test, value, zero = where.inputs
    if (
        not _is_one_hot(test, axes[0])
        or zero.op is not CONST
        or const_value(zero) != 0
        or not _is_invariant(value, frozenset(axes))
    ):
        return None
    found = _beside(value, node)
    return make(OPS["neg"], (found,), (), node.source) if negative else found


def _is_one_hot(test: Node, axis: int) -> bool:
    """Whether it compares positions along an axis with one that is in range, the same for all of them."""
    if test.op.name != "eq":
        return False
    place, wanted = (i.inputs[0] if i.op.name == "expand" else i for i in test.inputs)
    while wanted.op.name == "reshape":
        wanted = wanted.inputs[0]
    line = place.inputs[0] if place.op.name == "reshape" else place
    return (
        line.op.name == "iota"
        and place.shape[axis] == line.shape[0] == test.shape[axis]
        and wanted.op is IN_RANGE
        and wanted.param("size") == test.shape[axis]
        and _is_invariant(test.inputs[1], frozenset((axis,)))
    )


@dataclass
class _Product:
    """The factors of a product: those that are invariant along the axes of a sum, and those that vary."""

    axes: frozenset[int]
    invariant: list[tuple[str, Node]] = field(default_factory=list)  # to multiply by, or to divide by
    varying: list[Node] = field(default_factory=list)
    negative: bool = False
    seen: int = 0

    def take(self, node: Node) -> None:
        name, inputs = node.op.name, node.inputs
        self.seen += 1
        if _is_invariant(node, self.axes):
            self.invariant.append(("mul", node))
        elif self.seen > FEW or name not in ("neg", "mul", "div") or not all(map(_is_cheap, inputs)):
            self.varying.append(node)
        elif name == "neg":
            self.negative = not self.negative
            self.take(inputs[0])
        elif name == "mul":
            self.take(inputs[0])
            self.take(inputs[1])
        elif _is_invariant(inputs[1], self.axes):
            self.invariant.append(("div", inputs[1]))
            self.take(inputs[0])
        else:
            self.varying.append(node)


def _is_cheap(node: Node) -> bool:
    """Whether it may be recomputed where a multiple of it was stored. A softmax may not: it would compute exponentials again."""
    stack, seen = [node], {node}
    while stack:
        n = stack.pop()
        if n.op.kind == "elementwise" and prod(n.shape) == prod(node.shape) and n.op.cost > CHEAP:
            return False
        new = [i for i in n.inputs if i not in seen] if n.op.kind in ("elementwise", "move") else []
        seen.update(new)
        stack += new
        if len(seen) > 4 * FEW:
            return False
    return True


def _beside(factor: Node, total: Node) -> Node:
    """A factor that is invariant along the axes of a sum, in the shape of the sum."""
    if factor.op is CONST:
        return constant(const_value(factor), total.dtype, total.shape)
    sizes = [_size_before(factor, axis) for axis in range(len(factor.shape)) if axis not in total.param("axes")]
    inner = unshaped(factor.inputs[0])
    column = inner if inner.shape == tuple(sizes) else make(OPS["reshape"], (inner,), (tuple(sizes),))
    return column if column.shape == total.shape else make(OPS["expand"], (column,), (total.shape,))


def _unscaled(node: Node, axes: Collection[int]) -> tuple[Node, list[tuple[str, Node]]] | None:
    """The value that the node is a multiple of, and the factors, which are invariant along the axes. Factors that preserve zeros are omitted."""
    name, (a, *rest) = node.op.name, node.inputs or (node,)
    if name == "neg" or (name == "add" and a is rest[0]):
        return a, []
    if name not in ("mul", "div"):
        return None
    b = rest[0]
    if name == "mul" and not _is_invariant(b, axes):
        a, b = b, a
    if not _is_invariant(b, axes):
        return None
    return a, [] if b.op is CONST and _is_plain(b) else [(name, b)]


def _is_plain(number: Node) -> bool:
    value = const_value(number)
    return isfinite(value) and value != 0


def _is_invariant(node: Node, axes: Collection[int]) -> bool:
    """Whether it has the same value everywhere along the axes."""
    if node.op is CONST:
        return True
    return node.op.name == "expand" and all(_size_before(node, axis) == 1 for axis in axes)


def _size_before(expanded: Node, axis: int) -> int:
    """The size along an axis before the expansion."""
    shape = expanded.inputs[0].shape
    place = axis - (len(expanded.shape) - len(shape))
    return shape[place] if place >= 0 else 1


def _is_mean(node: Node, x: Node, axes: frozenset[int]) -> bool:
    """Whether each element is the mean of x over the axes, at its place."""
    if not is_spread(node, x.shape, axes):
        return False
    quotient = unshaped(node.inputs[0])
    if quotient.op.name != "div" or quotient.inputs[1].op is not CONST:
        return False
    total, count = unshaped(quotient.inputs[0]), const_value(quotient.inputs[1])
    same = total.op.name == "sum" and total.inputs[0] is x and frozenset(total.param("axes")) == axes
    return same and count == prod(x.shape[a] for a in axes)


def is_spread(node: Node, shape: Sequence[int], axes: Collection[int]) -> bool:
    """Whether a value of this shape without some axes is spread along them."""
    if node.op.name != "expand":
        return False
    return all(_size_before(node, axis) == (1 if axis in axes else size) for axis, size in enumerate(shape))


def unshaped(node: Node) -> Node:
    """What a node is a reshape of."""
    while node.op.name == "reshape":
        node = node.inputs[0]
    return node
