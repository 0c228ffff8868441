"""Long reductions to few results are split in two, so that threads share the first part."""

from __future__ import annotations

from math import prod

from ...dtypes import bool_
from ...graph.node import OPS, Node, make
from ...graph.rewrite import rule
from ..thresholds import thresholds


@rule(where=lambda op: op.combine is not None)
def long_reduction(node: Node) -> Node | None:
    """A long reduction to few results in two steps, the first of which has work for several threads.

    Where it is split follows from the shape alone, so the bits of the result do not depend on the number of threads.
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
        pieces = n
    elif pieces < thresholds.even_pieces and n >= thresholds.reduction_pieces * thresholds.even_pieces:
        return _with_remainder(node, first)
    if pieces == 1 or length // pieces < 16:
        return None
    return _in_pieces(node, first, pieces)


def _in_pieces(node: Node, first: int, pieces: int) -> Node:
    """A reduction of the reductions of so many equal parts of an axis."""
    x, axes = node.inputs[0], node.param("axes")
    n = x.shape[first]
    apart = (*x.shape[:first], pieces, n // pieces, *x.shape[first + 1 :])
    inner = tuple(
        sorted({*(a + 1 if a > first else a for a in axes if a != first), *((first + 1,) if n > pieces else ())})
    )
    part = make(
        node.op,
        (_reshaped(x, apart if n > pieces else x.shape),),
        (inner if n > pieces else tuple(a for a in axes if a != first),),
    )
    kept = [a for a in range(len(x.shape)) if a not in axes or a == first]
    return make(node.op, (part,), ((kept.index(first),),), node.source)


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
