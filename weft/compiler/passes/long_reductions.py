"""Long reductions to few results are split in two, so that threads share the first part.

A variance is split together with the mean that it needs: memory is read once for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...dtypes import bool_
from ...graph.node import CONST, OPS, Node, constant, make
from ...graph.rewrite import rule
from ..thresholds import thresholds
from .graph_builders import const_value
from .sum_identities import is_spread, unshaped


@rule(where=lambda op: op.combine is not None)
def long_reduction(node: Node) -> Node | None:
    """A long reduction to few results in two steps, of which the first has work for several threads. The split depends on the shape only,
    so the bits of the result do not depend on the number of threads.
    """
    x, axes = node.inputs[0], node.param("axes")
    results = prod(node.shape)
    length = prod(x.shape[a] for a in axes)
    if (
        length < thresholds.long_reduction
        or results * thresholds.long_reduction > prod(x.shape)
        or results > thresholds.long_reduction
    ):
        return None
    first = next(a for a in axes if x.shape[a] > 1)
    if x.shape[first] < thresholds.even_pieces:
        first = max(axes, key=lambda a: x.shape[a])
    n = x.shape[first]
    pieces = next((p for p in range(min(thresholds.reduction_pieces, n), 1, -1) if n % p == 0), 1)
    if len(axes) > 1 and n <= thresholds.reduction_pieces * 4 and n > 1:
        return _along(node, _piece_axes(x, axes, first))
    elif pieces < thresholds.even_pieces and n >= thresholds.reduction_pieces * thresholds.even_pieces:
        return _with_remainder(node, first)
    if pieces == 1 or length // pieces < 16:
        return None
    return _in_pieces(node, first, pieces)


def _piece_axes(x: Node, axes: Sequence[int], first: int) -> list[int]:
    """The axes whose indices number the pieces: one, and a second if the pieces of the first do not fit in a cache."""
    rest = [a for a in axes if a != first and x.shape[a] > 1]
    large = prod(x.shape) // x.shape[first] * x.dtype.itemsize > thresholds.piece_bytes
    return sorted([first, rest[0]]) if large and len(rest) > 1 else [first]


def _along(node: Node, apart: Sequence[int]) -> Node:
    """A reduction of the reductions at each index along some of its axes."""
    x, axes = node.inputs[0], node.param("axes")
    part = make(node.op, (x,), (tuple(a for a in axes if a not in apart),))
    kept = [a for a in range(len(x.shape)) if a not in axes or a in apart]
    return make(node.op, (part,), (tuple(kept.index(a) for a in apart),), node.source)


def _in_pieces(node: Node, first: int, pieces: int) -> Node:
    """A reduction of the reductions of this many equal parts of an axis."""
    x, axes = node.inputs[0], node.param("axes")
    n = x.shape[first]
    if n == pieces:
        return _along(node, [first])
    apart = make(OPS["reshape"], (x,), ((*x.shape[:first], pieces, n // pieces, *x.shape[first + 1 :]),))
    inner = {first + 1, *(a + 1 if a > first else a for a in axes if a != first)}
    part = make(node.op, (apart,), (tuple(sorted(inner)),))
    kept = [a for a in range(len(x.shape)) if a not in axes or a == first]
    return make(node.op, (part,), ((kept.index(first),),), node.source)


@rule("sum")
def moments_of_pieces(node: Node) -> Node | None:
    """A sum of squares of differences from the mean, where the sum behind the mean is one of pieces: each piece has its own mean.

    The squares of a piece are summed while it is in the cache, so both sums read memory once. With the mean m of all, and n elements and
    the mean m_p of a piece, the sum of (x - m)^2 is that of (x - m_p)^2, plus n (m_p - m)^2 (Chan, Golub, LeVeque 1983).
    """
    square = node.inputs[0]
    if square.op.name != "mul" or square.inputs[0] is not square.inputs[1] or square.inputs[0].op.name != "sub":
        return None
    x, mean = square.inputs[0].inputs
    found = _sum_of_pieces(mean, x, node.param("axes"))
    if found is None:
        return None
    total, part = found
    apart, inner = part.inputs[0], part.param("axes")
    count = prod(apart.shape[a] for a in inner)
    own = make(OPS["div"], (part, constant(float(count), part.dtype, part.shape)))
    away = make(OPS["sub"], (apart, _expanded(own, apart.shape, inner)))
    squares = make(OPS["sum"], (make(OPS["mul"], (away, away)),), (inner,), node.source)
    of_all = make(OPS["div"], (total, constant(float(prod(x.shape) // prod(total.shape)), total.dtype, total.shape)))
    between = make(OPS["sub"], (own, _expanded(of_all, own.shape, total.param("axes"))))
    between = make(OPS["mul"], (make(OPS["mul"], (between, between)), constant(float(count), own.dtype, own.shape)))
    return make(OPS["sum"], (make(OPS["add"], (squares, between)),), total.params, node.source)


def _sum_of_pieces(mean: Node, x: Node, axes: Sequence[int]) -> tuple[Node, Node] | None:
    """The sum of x over the axes and the sums of its pieces, if `mean` is x's mean at every element, and its sum one of pieces."""
    if not mean.dtype.is_float or not is_spread(mean, x.shape, axes):
        return None
    quotient = unshaped(mean.inputs[0])
    if quotient.op.name != "div" or quotient.inputs[1].op is not CONST:
        return None
    total = unshaped(quotient.inputs[0])
    if total.op.name != "sum" or total.inputs[0].op.name != "sum":
        return None
    part = total.inputs[0]
    whole = prod(x.shape[a] for a in axes)
    same = unshaped(part.inputs[0]) is unshaped(x) and const_value(quotient.inputs[1]) == whole
    return (total, part) if same and _reduces(total, part, x, axes) else None


def _reduces(total: Node, part: Node, x: Node, axes: Sequence[int]) -> bool:
    """Whether a sum of sums of pieces of x is its sum over these axes: what remains are the others, in their order."""
    apart, inner = part.inputs[0].shape, part.param("axes")
    left = [a for a in range(len(apart)) if a not in inner]
    kept = [n for i, n in enumerate(left) if i not in total.param("axes")]
    before = [prod(apart[:n]) for n in kept]
    wanted = [n for n in range(len(x.shape)) if n not in axes]
    return [apart[n] for n in kept] == [x.shape[n] for n in wanted] and before == [prod(x.shape[:n]) for n in wanted]


def _expanded(node: Node, shape: tuple[int, ...], axes: Sequence[int]) -> Node:
    """A value without some axes, spread along them."""
    ones = tuple(1 if a in axes else n for a, n in enumerate(shape))
    return make(OPS["expand"], (_reshaped(node, ones),), (shape,))


def _with_remainder(node: Node, axis: int) -> Node:
    """A reduction of the part that can be divided evenly, and of the few elements that remain along an axis without good factors."""
    x = node.inputs[0]
    end = x.shape[axis] - x.shape[axis] % thresholds.reduction_pieces

    def part(begin: int, end: int) -> Node:
        where = [(begin, end, 1) if a == axis else (0, n, 1) for a, n in enumerate(x.shape)]
        some = make(OPS["slice"], (x,), tuple(zip(*where, strict=True)))
        return make(node.op, (some,), node.params, node.source)

    both = _in_pieces(part(0, end), axis, thresholds.reduction_pieces), part(end, x.shape[axis])
    assert node.op.combine is not None
    of_numbers, of_bools = node.op.combine
    return make(OPS[of_bools if node.dtype is bool_ else of_numbers], both)


def _reshaped(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else make(OPS["reshape"], (node,), (shape,))
