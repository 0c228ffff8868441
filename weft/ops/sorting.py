"""Sorting and searching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import bool_, int64, promote
from ..errors import UserError
from ..graph.node import Node, Op, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, emit_all, function, number
from .creation import zeros, zeros_like
from .declare import Sample, Wrong, as_vector, normal_axis, whole
from .elementwise import astype, where
from .indexing import gather, grid_along, scatter, take, take_along_axis
from .movement import cut, flatten, same_dtype
from .reduce import sum


def _argsort_infer(x: Node, axis: int, descending: bool) -> Type:
    if axis != normal_axis("argsort", axis, len(x.shape)):
        raise UserError("argsort", f"an axis counted from the front is required, got {axis}.")
    return Type(x.shape, int64)


def _argsort(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # Sorting backwards from the back keeps equal elements in their order.
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backwards, axis))


_ARGSORT = Op(
    "argsort", "index", _argsort_infer, _argsort, None, ("axis", "descending"), 1, True,
    lambda rng: (
        Sample([rng.normal(size=s)], (a, d)) for s, a in [((5,), 0), ((3, 4), 1), ((3, 2), 0), ((0,), 0)] for d in (True, False)
    ),
    (Wrong(lambda: argsort(zeros(3), axis=1), "[argsort] axis 1 does not exist in a tensor of 1 dimensions"),), own_kernels=True,
)  # fmt: skip


MOST_SELECTED = 64  # elements that are selected in one pass over the others; more are sorted


def _top_k_infer(x: Node, axis: int, k: int) -> tuple[Type, Type]:
    if axis != normal_axis("top_k", axis, len(x.shape)) or not 0 < k <= min(MOST_SELECTED, x.shape[axis]):
        raise UserError("top_k", f"an axis of {x.type} and up to {MOST_SELECTED} elements of it are required, got {k}.")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return Type(shape, x.dtype), Type(shape, int64)


def _top_k(x: np.ndarray, axis: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.take(_argsort(x, axis, True), range(k), axis=axis)
    return np.take_along_axis(x, order, axis), order


def _top_k_vjp(gs: Sequence[Tensor], ys: Sequence[Tensor], x: Tensor, axis: int, k: int) -> tuple[Callable[[], Tensor]]:
    """Move the gradients of the selected elements back to their positions."""
    return (lambda: scatter(zeros_like(x), gs[0], grid_along(ys[1], axis), tuple(range(x.ndim)), "add"),)


_TOP_K = Op(
    "top_k", "index", _top_k_infer, _top_k, _top_k_vjp, ("axis", "k"), 1, True,
    samples=lambda rng: (
        Sample([rng.normal(size=s)], (a, k)) for s, a, k in [((5,), 0, 2), ((3, 40), 1, 7), ((3, 2), 0, 3), ((2, 3, 2), 1, 1), ((0, 3), 1, 2)]
    ),
    errors=(Wrong(lambda: top_k(zeros(3), 4), "[top_k] k must be between 0 and 3"),), own_kernels=True,
)  # fmt: skip


@function
@as_vector
def argsort(x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort the elements; the sort is stable, and nan sorts last."""
    x = as_tensor(x)
    return emit(_ARGSORT, (x,), (normal_axis("argsort", axis, x.ndim), descending))


@function
@as_vector
def sort(x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in sorted order.

    >>> sort(as_tensor([3, 1, 2]), descending=True).tolist()
    [3, 2, 1]
    """
    x = as_tensor(x)
    return take_along_axis(x, argsort(x, axis=axis, descending=descending), axis=axis)


class TopKResult(NamedTuple):
    """The k largest elements and their indices."""

    values: Tensor
    indices: Tensor


@function
@as_vector
def top_k(x: ArrayLike, k: int, /, *, axis: int = -1) -> TopKResult:
    """The k largest elements along an axis, in descending order, and their indices.

    >>> top_k(as_tensor([3.0, 9.0, 5.0]), 2).indices.tolist()
    [1, 2]
    """
    x = as_tensor(x)
    axis = normal_axis("top_k", axis, x.ndim)
    k = whole("top_k", "number of elements", k)
    if not k <= x.shape[axis]:
        raise UserError("top_k", f"k must be between 0 and {x.shape[axis]}, the size of axis {axis}, got {k}.")
    if 0 < k <= MOST_SELECTED:
        return TopKResult(*emit_all(_TOP_K, (x,), (axis, k)))
    order = cut(argsort(x, axis=axis, descending=True), axis, 0, k)
    return TopKResult(take_along_axis(x, order, axis=axis), order)


@function
def searchsorted(x1: ArrayLike, x2: ArrayLike, /, *, side: str = "left", sorter: Any = None) -> Tensor:
    """The insertion index of each value in a sorted vector, by a vectorized binary search.

    >>> searchsorted(as_tensor([1, 3, 5]), as_tensor([0, 3, 9])).tolist()
    [0, 1, 3]
    """
    table, values = as_tensor(x1), as_tensor(x2)
    if table.ndim != 1 or side not in ("left", "right"):
        raise UserError(
            "searchsorted", f"a vector and side 'left' or 'right' are required, got {table.shape}, {side!r}."
        )
    table = table if sorter is None else take(table, sorter)
    dtype = promote(table.dtype, values.dtype)
    table, values = astype(table, dtype), astype(values, dtype)
    n = table.shape[0]
    low, high = zeros(values.shape, dtype=int64), number(n, int64, values.shape)
    for _ in range(n.bit_length()):
        middle = (low + high) // 2
        found = gather(table, [where(middle < n, middle, n - 1)], (0,))
        beyond = _sorts_before(found, values, side == "right") & (low < high)
        low, high = where(beyond, middle + 1, low), where(beyond, high, middle)
    return low


def _sorts_before(x: Tensor, y: Tensor, or_beside: bool) -> Tensor:
    """Where x sorts before y (or equal to it, with `or_beside`), with nan last."""
    before = x <= y if or_beside else x < y
    if not y.dtype.is_float:
        return before
    return before | (y != y) if or_beside else before | ((y != y) & (x == x))


@function
def count_nonzero(x: ArrayLike, /, *, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The number of nonzero elements over axes."""
    return sum(as_tensor(x) != 0, axis=axis, dtype=int64, keepdims=keepdims)


@function
def isin(x: ArrayLike, values: ArrayLike, /) -> Tensor:
    """Where an element is one of the values.

    >>> isin(as_tensor([1, 2, 3]), as_tensor([3, 1])).tolist()
    [True, False, True]
    """
    x, table = same_dtype("isin", [x, flatten(as_tensor(values))])
    if table.size == 0:
        return zeros(x.shape, dtype=bool_)
    table = sort(table)
    place = searchsorted(table, x)
    return gather(table, [where(place < table.size, place, 0)], (0,)) == x
