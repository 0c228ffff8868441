"""Functions whose result shape depends on values: nonzero, boolean_mask, unique, repeat.

Such a shape is unknown while a function is traced. `size=` makes it static: the result is truncated or padded to that size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dtypes import int64
from ..errors import UserError
from ..tensor import ArrayLike, Tensor, as_tensor, function
from .convert import asarray
from .creation import full, iota, zeros
from .declare import accept, normal_axis, whole
from .elementwise import astype, floor_divide, remainder, where
from .indexing import scatter, take
from .movement import broadcast_to, concat, cut, expand_dims, flatten, reshape, stack
from .reduce import cumulative_sum, sum
from .sorting import searchsorted, sort


def _must_be_known(name: str, x: Tensor, instead: str) -> None:
    if x.node.abstract:
        raise UserError(
            name,
            f"the shape of the result depends on values that are not known while a function is traced. Use weft.{instead}, "
            "whose result has n elements.",
        )


@function
def nonzero(x: ArrayLike, /, *, size: int | None = None, fill_value: int = 0) -> tuple[Tensor, ...]:
    """The indices of the nonzero elements, one index tensor per axis. Without a size the values are computed immediately.

    >>> [i.tolist() for i in nonzero(as_tensor([0, 7, 0, 8]), size=3, fill_value=-1)]
    [[1, 3, -1]]
    """
    x = as_tensor(x)
    if x.ndim == 0:
        raise UserError("nonzero", "a tensor with dimensions is required.")
    if size is None:
        _must_be_known("nonzero", x, "nonzero(x, size=n)")
        return tuple(asarray(a) for a in np.nonzero(x.numpy()))
    places, known = _places(x != 0, whole("nonzero", "size", size))
    found = []
    for n in reversed(x.shape):
        found.append(where(known, remainder(places, max(n, 1)), fill_value))
        places = floor_divide(places, max(n, 1))
    return tuple(reversed(found))


def _places(mask: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The indices of True in the flattened mask, truncated or padded to `size`, and a mask of the valid ones."""
    chosen = flatten(mask)
    number = cumulative_sum(astype(chosen, int64)) - 1
    target = where(
        chosen & (number < size), number, size
    )  # elements that are not selected are written to an extra slot at the end
    table = scatter(zeros(size + 1, dtype=int64), iota(chosen.size), [target], (0,), "set")
    return cut(table, 0, 0, size), iota(size) < sum(astype(chosen, int64))


@function
def argwhere(x: ArrayLike, /, *, size: int | None = None, fill_value: int = 0) -> Tensor:
    """The indices of the nonzero elements, one row per element.

    >>> argwhere(as_tensor([[0, 7], [8, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    return stack(nonzero(x, size=size, fill_value=fill_value), axis=1)


@function
def boolean_mask(
    x: ArrayLike, mask: ArrayLike, /, *, axis: int | None = None, size: int | None = None, fill_value: Any = 0
) -> Tensor:
    """The elements (rows, ...) along an axis where a mask is true; without an axis, of the flattened tensor.

    >>> boolean_mask(as_tensor([5, 6, 7]), [True, False, True], size=4).tolist()
    [5, 7, 0, 0]
    """
    x, chosen = as_tensor(x), as_tensor(mask)
    if axis is None:
        x, axis, chosen = flatten(x), 0, flatten(chosen)
    axis = normal_axis("boolean_mask", axis, x.ndim)
    accept("boolean_mask", chosen.dtype, "bits")
    if chosen.shape != (x.shape[axis],):
        raise UserError(
            "boolean_mask", f"a mask for each of {x.shape[axis]} places is required, got shape {chosen.shape}."
        )
    if size is None:
        _must_be_known("boolean_mask", chosen, "boolean_mask(x, mask, size=n)")
        return take(x, nonzero(chosen)[0], axis=axis)
    if x.shape[axis] == 0:
        shape = (*x.shape[:axis], whole("boolean_mask", "size", size), *x.shape[axis + 1 :])
        return full(shape, fill_value, dtype=x.dtype)
    places, known = _places(chosen != 0, whole("boolean_mask", "size", size))
    known = reshape(known, [-1 if a == axis else 1 for a in range(x.ndim)])
    return where(
        known,
        take(x, where(reshape(known, (-1,)), places, 0), axis=axis),
        astype(as_tensor(fill_value, x.dtype), x.dtype),
    )


class UniqueAll(NamedTuple):
    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    values: Tensor
    inverse_indices: Tensor


@function
def unique_all(x: ArrayLike, /) -> UniqueAll:
    """The unique elements, sorted, with the index of their first occurrence, the inverse indices and the counts."""
    x = as_tensor(x)
    _must_be_known("unique_all", x, "unique_values(x, size=n)")
    array = x.numpy() if x.dtype.bits != 16 or not x.dtype.is_float else x.numpy().astype(np.float32)
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    places = asarray(inverse.reshape(x.shape))
    return UniqueAll(asarray(values, dtype=x.dtype), asarray(first), places, asarray(counts))


@function
def unique_counts(x: ArrayLike, /) -> UniqueCounts:
    """The unique elements, sorted, and their counts."""
    everything = unique_all(x)
    return UniqueCounts(everything.values, everything.counts)


@function
def unique_inverse(x: ArrayLike, /) -> UniqueInverse:
    """The unique elements, sorted, and the inverse indices."""
    everything = unique_all(x)
    return UniqueInverse(everything.values, everything.inverse_indices)


@function
def unique_values(x: ArrayLike, /, *, size: int | None = None, fill_value: Any = None) -> Tensor:
    """The unique elements, sorted; with `size`, truncated or padded with `fill_value` (default: the smallest element).

    >>> unique_values(as_tensor([3, 1, 3]), size=3).tolist()
    [1, 3, 1]
    """
    if size is None:
        return unique_all(x).values
    ordered = sort(flatten(as_tensor(x)))
    if ordered.size == 0 and fill_value is None:
        raise UserError("unique_values", "a fill_value is required for a tensor without elements.")
    if ordered.size == 0:
        return full(whole("unique_values", "size", size), fill_value, dtype=ordered.dtype)
    changes = cut(ordered, 0, 1, ordered.size) != cut(ordered, 0, 0, ordered.size - 1)
    filler = ordered[0] if fill_value is None else fill_value
    return boolean_mask(ordered, concat([full(1, True), changes]), size=size, fill_value=filler)


@function
def repeat(x: ArrayLike, repeats: ArrayLike, /, *, axis: int | None = None, size: int | None = None) -> Tensor:
    """Repeat each element along an axis (of the flattened tensor by default).

    `size` is the total number of elements, which is unknown while a function that computes the counts is traced. If the counts add up to
    more, the rest is dropped; if to less, the last element is repeated.

    >>> repeat(as_tensor([1, 2]), 2).tolist()
    [1, 1, 2, 2]
    """
    x = as_tensor(x)
    if axis is None:
        x, axis = flatten(x), 0
    axis = normal_axis("repeat", axis, x.ndim)
    if isinstance(repeats, int):
        if repeats < 0:
            raise UserError("repeat", f"0 or more repetitions are required, got {repeats}.")
        spread = broadcast_to(expand_dims(x, axis=axis + 1), (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]))
        return reshape(spread, (*x.shape[:axis], x.shape[axis] * repeats, *x.shape[axis + 1 :]))
    times = as_tensor(repeats)
    accept("repeat", times.dtype, "integer")
    if size is not None:
        return _repeated(x, times, axis, whole("repeat", "size", size))
    if times.node.abstract:
        raise UserError(
            "repeat",
            "how often elements are repeated is not known while a function is traced. Give the number of all: size=n.",
        )
    counts = times.numpy()
    if counts.shape not in ((), (1,), (x.shape[axis],)) or (counts < 0).any():
        raise UserError("repeat", f"one count of 0 or more for each of {x.shape[axis]} elements is required.")
    places = np.repeat(np.arange(x.shape[axis]), counts)
    return take(x, asarray(places), axis=axis)


def _repeated(x: Tensor, times: Tensor, axis: int, size: int) -> Tensor:
    n = x.shape[axis]
    if times.shape not in ((), (1,), (n,)) or not n:
        raise UserError("repeat", f"one count for each of {n} elements is required, got shape {times.shape}.")
    ends = cumulative_sum(broadcast_to(astype(times, int64), (n,)))
    places = searchsorted(ends, iota(size), side="right")
    return take(x, where(places < n, places, n - 1), axis=axis)
