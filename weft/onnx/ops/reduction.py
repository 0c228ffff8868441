"""Reductions, cumulative sums and positions of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...dtypes import DType, bool_, iinfo
from ...ops import reduce as r
from ...ops.creation import full, ones, zeros
from ...ops.elementwise import abs, astype, log, sqrt
from ...ops.movement import concat, flip, squeeze
from ...ops.statistics import logsumexp, mean
from ...tensor import Tensor
from ..registry import op

Axes = tuple[int, ...]


def _lowest(dtype: DType) -> Any:
    return -np.inf if dtype.is_float else False if dtype is bool_ else iinfo(dtype).min


def _highest(dtype: DType) -> Any:
    return np.inf if dtype.is_float else True if dtype is bool_ else iinfo(dtype).max


def _extreme(function: Callable[..., Tensor], empty: Callable[[DType], Any]) -> Callable[[Tensor, Axes, bool], Tensor]:
    """A maximum or minimum; of no elements it is the least or the largest number."""

    def call(x: Tensor, axes: Axes, keep: bool) -> Tensor:
        if any(x.shape[a] == 0 for a in axes):
            return full(sum_of(x, axes, keep).shape, empty(x.dtype), dtype=x.dtype)
        return function(x, axis=axes, keepdims=keep)

    return call


def sum_of(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return r.sum(x, axis=axes, keepdims=keep, dtype=None if x.dtype is bool_ else x.dtype)


def _product(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return r.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)


def _mean(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return astype(mean(x, axis=axes, keepdims=keep), x.dtype)


def _l2(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    total = sum_of(x * x, axes, keep)
    return astype(sqrt(total if x.dtype.is_float else astype(total, "float64")), x.dtype)


def _log_sum(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return astype(log(sum_of(x, axes, keep)), x.dtype)


def _log_sum_exp(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    if any(x.shape[a] == 0 for a in axes):
        return _log_sum(x, axes, keep)
    return astype(logsumexp(x, axis=axes, keepdims=keep), x.dtype)


_REDUCTIONS: dict[str, tuple[int, Callable[[Tensor, Axes, bool], Tensor]]] = {
    "ReduceSum": (13, sum_of),
    "ReduceProd": (18, _product),
    "ReduceMean": (18, _mean),
    "ReduceMax": (18, _extreme(r.max, _lowest)),
    "ReduceMin": (18, _extreme(r.min, _highest)),
    "ReduceL1": (18, lambda x, axes, keep: sum_of(abs(x), axes, keep)),
    "ReduceL2": (18, _l2),
    "ReduceLogSum": (18, _log_sum),
    "ReduceLogSumExp": (18, _log_sum_exp),
    "ReduceSumSquare": (18, lambda x, axes, keep: sum_of(x * x, axes, keep)),
}


def _register(name: str, axes_are_input_since: int, reduction: Callable[[Tensor, Axes, bool], Tensor]) -> None:
    @op(name)
    def by_attribute(x: Tensor, *, axes: Axes | None = None, keepdims: int = 1) -> Tensor:
        return reduction(x, _normal(axes, x.ndim), bool(keepdims))

    @op(name, since=axes_are_input_since, host=("axes",))
    def by_input(
        x: Tensor, axes: np.ndarray | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        given = () if axes is None else tuple(axes.ravel().tolist())
        if not given and noop_with_empty_axes:
            return reduction(x, (), bool(keepdims))
        return reduction(x, _normal(given or None, x.ndim), bool(keepdims))


def _normal(axes: Axes | None, rank: int) -> Axes:
    return tuple(range(rank)) if axes is None else tuple(a + rank if a < 0 else a for a in axes)


for _name, (_since, _reduction) in _REDUCTIONS.items():
    _register(_name, _since, _reduction)


def _register_arg(name: str, function: Callable[..., Tensor]) -> None:
    @op(name)
    def position(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        found = function(flip(x, axis=axis) if select_last_index else x, axis=axis, keepdims=True)
        found = x.shape[axis] - 1 - found if select_last_index else found
        return found if keepdims else squeeze(found, axis)


_register_arg("ArgMax", r.argmax)
_register_arg("ArgMin", r.argmin)


def _cumulative(function: Callable[..., Tensor], start: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(x: Tensor, axis: np.ndarray, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        along = int(axis.item())
        x = flip(x, axis=along) if reverse else x
        if exclusive and x.shape[along]:
            shape = tuple(1 if i == along % x.ndim else n for i, n in enumerate(x.shape))
            key = tuple(slice(0, -1) if i == along % x.ndim else slice(None) for i in range(x.ndim))
            x = concat([start(shape, dtype=x.dtype), x[key]], axis=along)
        y = function(x, axis=along, dtype=x.dtype)
        return flip(y, axis=along) if reverse else y

    return call


op("CumSum", host=("axis",))(_cumulative(r.cumulative_sum, zeros))
op("CumProd", host=("axis",))(_cumulative(r.cumulative_prod, ones))
