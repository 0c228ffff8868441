"""Reductions (sum, product, maximum ...) and cumulative primitives along an axis."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..dtypes import DEFAULT_INT, DType, DTypeLike, as_dtype, bool_, float32, int64, uint64
from ..errors import UserError
from ..graph.node import OPS, Node, Op, Type
from ..tensor import ArrayLike, Axis, Tensor, as_tensor, emit, function, number
from .declare import Sample, Wrong, accept, as_vector, expand_to, normal_axes, normal_axis
from .elementwise import astype
from .movement import cut, flip, pad_axis, permute_dims, reshape

Axes = tuple[int, ...]


def _infer(name: str, result: DType | None = None, empty: bool = True) -> Callable[..., Type]:
    def infer(x: Node, axes: Axes) -> Type:
        if axes != normal_axes(name, axes, len(x.shape)):
            raise UserError(name, f"axes counted from the front, in order, are required, got {axes}.")
        if not empty and x.dtype is not bool_ and builtins.any(x.shape[a] == 0 for a in axes):
            raise UserError(name, f"there is no {name} of no elements: axis {axes} of shape {x.shape} is empty.")
        return Type(tuple(n for i, n in enumerate(x.shape) if i not in axes), result or x.dtype)

    return infer


def _samples(shapes: list[tuple[tuple[int, ...], Axes]]) -> Callable[..., Iterator[Sample]]:
    def samples(rng: np.random.Generator) -> Iterator[Sample]:
        for shape, axes in shapes:
            yield Sample([rng.uniform(0.5, 2.0, size=shape)], (axes,))

    return samples


_SHAPES: list[tuple[tuple[int, ...], Axes]] = [
    ((), ()),
    ((5,), (0,)),
    ((2, 3, 4), (0, 2)),
    ((2, 3), ()),
    ((0, 3), (1,)),
]
_EMPTY: list[tuple[tuple[int, ...], Axes]] = [((0,), (0,)), ((2, 0), (1,))]


def restore(g: Tensor, like: Tensor, axes: Axes) -> Tensor:
    """Broadcast a reduced value back over the reduced axes."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(like.shape))
    return expand_to(reshape(g, kept), like.shape)


def _wide(x: np.ndarray) -> Any:
    """Convert floats to float64, so that the reference is more accurate than the backends compared with it."""
    return np.float64 if x.dtype.kind == "f" else x.dtype


_SUM = Op(
    "sum", "reduce", _infer("sum"), lambda x, axes: np.sum(x, axis=axes, dtype=_wide(x)),
    lambda g, y, x, axes: (restore(g, x, axes),), ("axes",), 1, True, _samples(_SHAPES + _EMPTY),
    (Wrong(lambda: sum(number(0.0, float32, (3,)), axis=1), "[sum] axis 1 does not exist in a tensor of 1 dimensions"),),
    kernel="reduction", combine=("add", ""),
)  # fmt: skip


def _prod_vjp(g: Tensor, y: Tensor, x: Tensor, axes: Axes) -> tuple[Tensor]:
    """The product of all other elements: of those before times those behind. Dividing by x would fail at zeros."""
    last = [i for i in range(x.ndim) if i not in axes] + list(axes)
    moved = permute_dims(x, last)
    kept = moved.shape[: x.ndim - len(axes)]
    flat = reshape(moved, (*kept, math.prod(moved.shape[len(kept) :])))
    others = _before(flat) * flip(_before(flip(flat, axis=-1)), axis=-1)
    back = [last.index(i) for i in range(x.ndim)]
    return (restore(g, x, axes) * permute_dims(reshape(others, moved.shape), back),)


def _before(x: Tensor) -> Tensor:
    """The product of all elements before each one, along the last axis."""
    return x if x.shape[-1] == 0 else cumulative_prod(_shifted(x, x.ndim - 1, 1, 1.0), axis=-1)


_PROD = Op(
    "prod", "reduce", _infer("prod"), lambda x, axes: np.prod(x, axis=axes, dtype=_wide(x)), _prod_vjp, ("axes",), 1,
    True, _samples(_SHAPES + _EMPTY),
    (Wrong(lambda: prod(number(0.0, float32, (3,)), axis=(0, 0)), "[prod] each axis can be named once, got (0, 0)"),),
    kernel="reduction", combine=("mul", ""),
)  # fmt: skip


def _extreme_vjp(g: Tensor, y: Tensor, x: Tensor, axes: Axes) -> tuple[Tensor]:
    # Equal maxima share the derivative, so that it does not depend on their order.
    chosen = astype(x == restore(y, x, axes), x.dtype)
    return (restore(g / sum(chosen, axis=axes), x, axes) * chosen,)


def folded_maximum(x: np.ndarray, axes: Axes) -> Any:
    """The maximum over axes: like `maximum`, 0.0 is greater than -0.0; the maximum of no bools is False."""
    if x.dtype == bool:
        return np.any(x, axis=axes)
    result = np.maximum.reduce(x, axis=axes)
    if x.dtype.kind == "f" and np.any(result == 0):  # no element is above 0, and one of them is 0.0
        return np.where(result == 0, np.where(np.any(~np.signbit(x), axis=axes), 0.0, -0.0), result)
    return result


def _folded_minimum(x: np.ndarray, axes: Axes) -> Any:
    if x.dtype == bool:
        return np.all(x, axis=axes)
    return -folded_maximum(-x, axes) if x.dtype.kind == "f" else np.minimum.reduce(x, axis=axes)


_MAX = Op(
    "max", "reduce", _infer("max", empty=False), folded_maximum, _extreme_vjp, ("axes",), 1, True,
    _samples(_SHAPES), (Wrong(lambda: max(number(0.0, float32, (0,))), "[max] there is no max of no elements"),),
    precision="exact", kernel="reduction", combine=("maximum", "or_"),
)  # fmt: skip
_MIN = Op(
    "min", "reduce", _infer("min", empty=False), _folded_minimum, _extreme_vjp, ("axes",), 1, True,
    _samples(_SHAPES), (Wrong(lambda: min(number(0.0, float32, (0,))), "[min] there is no min of no elements"),),
    precision="exact", kernel="reduction", combine=("minimum", "and_"),
)  # fmt: skip


def _reduce(op: Op, x: Tensor, axis: Axis, keepdims: bool) -> Tensor:
    axes = normal_axes(op.name, axis, x.ndim)
    result = emit(op, (x,), (axes,)) if axes else x
    return reshape(result, tuple(1 if i in axes else n for i, n in enumerate(x.shape))) if keepdims else result


def _summed_dtype(x: Tensor, dtype: DTypeLike | None, name: str) -> DType:
    """The dtype of a sum: small integers are summed in 64 bits, as the array API requires."""
    if dtype is not None:
        return as_dtype(dtype, name)
    return {"int": int64, "bool": DEFAULT_INT, "uint": uint64}.get(x.dtype.kind, x.dtype)


@function
def sum(x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
    """The sum over axes (all, if none is given). True counts as 1.

    >>> sum(as_tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    Tensor([4., 6.], dtype=float32)
    """
    x = as_tensor(x)
    return _reduce(_SUM, astype(x, _summed_dtype(x, dtype, "sum")), axis, keepdims)


@function
def prod(x: ArrayLike, /, *, axis: Axis = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
    """The product over axes."""
    x = as_tensor(x)
    return _reduce(_PROD, astype(x, _summed_dtype(x, dtype, "prod")), axis, keepdims)


@function
def max(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The maximum over axes; nan if there is one. Equal maxima share the derivative."""
    return _reduce(_MAX, as_tensor(x), axis, keepdims)


@function
def min(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The minimum over axes; nan if there is one."""
    return _reduce(_MIN, as_tensor(x), axis, keepdims)


@function
def any(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether any element over axes is true."""
    return _reduce(_MAX, astype(as_tensor(x), bool_), axis, keepdims)


@function
def all(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Whether all elements over axes are true."""
    return _reduce(_MIN, astype(as_tensor(x), bool_), axis, keepdims)


# --- where the extremes are ----------------------------------------------------------------------------------------------


def _arg_infer(name: str) -> Callable[..., Type]:
    def infer(x: Node, axis: int) -> Type:
        if axis != normal_axis(name, axis, len(x.shape)):
            raise UserError(name, f"an axis counted from the front is required, got {axis}.")
        if x.shape[axis] == 0:
            raise UserError(name, f"there is no {name} of no elements: axis {axis} of shape {x.shape} is empty.")
        return Type(tuple(n for i, n in enumerate(x.shape) if i != axis), int64)

    return infer


def _arg_op(name: str, reference: Any) -> Op:
    return Op(
        name, "reduce", _arg_infer(name), lambda x, axis: reference(x, axis=axis), None, ("axis",), 1, True,
        lambda rng: (Sample([rng.normal(size=s)], (a,)) for s, a in [((4,), 0), ((3, 2), 1), ((0, 3), 1)]),
        (Wrong(lambda: _arg(OPS[name], number(0.0, float32, (0,)), 0, False), f"[{name}] there is no {name} of no elements"),),
        precision="exact", kernel="reduction", returns_position=True,
    )  # fmt: skip


_ARGMAX, _ARGMIN = _arg_op("argmax", np.argmax), _arg_op("argmin", np.argmin)


def _arg(op: Op, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    accept(op.name, x.dtype, "numeric")
    if axis is None:
        found = emit(op, (reshape(x, (x.size,)),), (0,))
        return reshape(found, (1,) * x.ndim) if keepdims else found
    axis = normal_axis(op.name, axis, x.ndim)
    found = emit(op, (x,), (axis,))
    return reshape(found, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if keepdims else found


@function
@as_vector
def argmax(x: ArrayLike, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the maximum, the first of equals."""
    return _arg(_ARGMAX, as_tensor(x), axis, keepdims)


@function
@as_vector
def argmin(x: ArrayLike, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the minimum, the first of equals."""
    return _arg(_ARGMIN, as_tensor(x), axis, keepdims)


# --- along an axis -------------------------------------------------------------------------------------------------------


def _along_infer(name: str) -> Callable[..., Type]:
    def infer(x: Node, axis: int) -> Type:
        if axis != normal_axis(name, axis, len(x.shape)):
            raise UserError(name, f"an axis counted from the front is required, got {axis}.")
        return x.type

    return infer


def _along_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, axis in [((5,), 0), ((2, 3), 1), ((3, 2), 0), ((0, 2), 0), ((1,), 0)]:
        yield Sample([rng.uniform(0.5, 2.0, size=shape)], (axis,))


def _cumsum_vjp(g: Tensor, y: Tensor, x: Tensor, axis: int) -> tuple[Tensor]:
    return (flip(cumulative_sum(flip(g, axis=axis), axis=axis), axis=axis),)


_CUMSUM = Op(
    "cumsum", "along", _along_infer("cumulative_sum"), lambda x, axis: np.cumsum(x, axis=axis, dtype=_wide(x)),
    _cumsum_vjp, ("axis",), 1, True, _along_samples,
    (Wrong(lambda: cumulative_sum(number(0.0, float32, (2, 2))), "[cumulative_sum] an axis is required for 2 dimensions"),), own_kernels=True,
)  # fmt: skip


def _cumprod_vjp(g: Tensor, y: Tensor, x: Tensor, axis: int) -> tuple[Tensor]:
    """Differentiates the doubling scan, in which each y_i is a product of log2(n) factors: zeros need no special case."""
    stages, step, n = [x], 1, x.shape[axis]
    while step < n:
        stages.append(stages[-1] * _shifted(stages[-1], axis, step, 1.0))
        step *= 2
    for stage in reversed(stages[:-1]):
        step //= 2
        product = g * stage
        g = g * _shifted(stage, axis, step, 1.0) + _shifted(product, axis, -step, 0.0)
    return (g,)


def _shifted(x: Tensor, axis: int, by: int, filler: float) -> Tensor:
    """Shift the elements along an axis, filling with `filler`."""
    n = x.shape[axis]
    part = cut(x, axis, 0, n - by) if by > 0 else cut(x, axis, -by, n)
    return pad_axis(part, axis, by, 0, filler) if by > 0 else pad_axis(part, axis, 0, -by, filler)


_CUMPROD = Op(
    "cumprod", "along", _along_infer("cumulative_prod"), lambda x, axis: np.cumprod(x, axis=axis, dtype=_wide(x)),
    _cumprod_vjp, ("axis",), 1, True, _along_samples,
    (Wrong(lambda: cumulative_prod(number(0.0, float32, (2, 2))), "[cumulative_prod] an axis is required for 2 dimensions"),), own_kernels=True,
)  # fmt: skip


def _cumulative(
    op: Op, name: str, x: ArrayLike, axis: int | None, dtype: DTypeLike | None, include_initial: bool, initial: int
) -> Tensor:
    x = as_tensor(x)
    if axis is None:
        if x.ndim != 1:
            raise UserError(name, f"an axis is required for {x.ndim} dimensions.")
        axis = 0
    if x.ndim == 0:
        vector = _cumulative(op, name, reshape(x, (1,)), axis, dtype, include_initial, initial)
        return vector if include_initial else reshape(vector, ())
    axis = normal_axis(name, axis, x.ndim)
    result = emit(op, (astype(x, _summed_dtype(x, dtype, name)),), (axis,))
    if not include_initial:
        return result
    return pad_axis(result, axis, 1, 0, initial)


@function
def cumulative_sum(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """The cumulative sum along an axis; `include_initial` prepends a 0.

    >>> cumulative_sum(as_tensor([1, 2, 3])).tolist()
    [1, 3, 6]
    """
    return _cumulative(_CUMSUM, "cumulative_sum", x, axis, dtype, include_initial, 0)


@function
def cumulative_prod(
    x: ArrayLike, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
) -> Tensor:
    """The cumulative product along an axis; `include_initial` prepends a 1."""
    return _cumulative(_CUMPROD, "cumulative_prod", x, axis, dtype, include_initial, 1)
