"""Reading elements at indices, sorting and reversing."""

from __future__ import annotations

import numpy as np

from ...ops.creation import iota
from ...ops.elementwise import where
from ...ops.indexing import gather, take, take_along_axis
from ...ops.movement import expand_dims, moveaxis, reshape
from ...ops.sorting import argsort
from ...tensor import Tensor
from ..registry import op


@op("Gather")
def gathered(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    return take(x, indices, axis=axis)


@op("GatherElements")
def gathered_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    key = tuple(slice(None) if i == axis % x.ndim else slice(0, n) for i, n in enumerate(indices.shape))
    return take_along_axis(x[key], indices, axis=axis)


@op("GatherND")
def gathered_slices(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    """The last axis of the indices holds coordinates along the axes that follow the batch."""
    depth = indices.shape[-1]
    outer = indices.shape[:-1]
    parts = [indices[..., i] for i in range(depth)]
    batch = [
        reshape(iota(outer[i]), [n if j == i else 1 for j, n in enumerate(outer)]) + parts[0] * 0
        for i in range(batch_dims)
    ]
    return gather(x, [*batch, *parts], tuple(range(batch_dims + depth)))


@op("TopK")
def top_k_by_attribute(x: Tensor, *, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    return _top(x, k, axis, True)


@op("TopK", since=10, host=("k",))
def top_k(x: Tensor, k: np.ndarray, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    return _top(x, int(k.reshape(()).item()), axis, bool(largest))


def _top(x: Tensor, k: int, axis: int, largest: bool) -> tuple[Tensor, Tensor]:
    axis %= x.ndim
    order = argsort(x, axis=axis, descending=largest)
    order = order[(slice(None),) * axis + (slice(0, k),)]
    return take_along_axis(x, order, axis=axis), order


@op("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    """Reverse the first `lengths` elements of each sequence."""
    y = moveaxis(x, [batch_axis, time_axis], [0, 1])
    time = reshape(iota(y.shape[1]), (1, -1))
    count = expand_dims(lengths.astype("int64"), axis=1)
    index = where(time < count, count - 1 - time, time)
    index = reshape(index, (*y.shape[:2], *[1] * (y.ndim - 2)))
    return moveaxis(take_along_axis(y, index, axis=1), [0, 1], [batch_axis, time_axis])
