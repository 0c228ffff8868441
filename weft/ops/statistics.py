"""Means, variances, norms and softmax, composed of other ops."""

from __future__ import annotations

import builtins
import math
from typing import Any

from ..dtypes import bool_, float32
from ..errors import UserError
from ..tensor import ArrayLike, Axis, Tensor, as_tensor, function
from .declare import as_float, as_vector, in_float32, normal_axes, normal_axis, whole
from .elementwise import abs, astype, exp, log, sqrt, stop_gradient, where
from .math import isfinite
from .movement import broadcast_to, concat, cut, squeeze
from .reduce import max, sum


@function
@in_float32
def mean(x: ArrayLike, /, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The mean over axes; integers and bools become floats first.

    >>> mean(as_tensor([True, False, True, True]))
    Tensor(0.75, dtype=float32)
    """
    x = _numbers(x, "mean")
    count = math.prod(x.shape[a] for a in normal_axes("mean", axis, x.ndim))
    return sum(x, axis=axis, keepdims=keepdims) / float(count)


def _numbers(x: ArrayLike, name: str) -> Tensor:
    x = as_tensor(x)
    return as_float(astype(x, float32) if x.dtype is bool_ else x, name)


@function
@in_float32
def var(x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance over axes: the sum of squared deviations, divided by count - correction."""
    x = _numbers(x, "var")
    count = math.prod(x.shape[a] for a in normal_axes("var", axis, x.ndim))
    centred = x - mean(x, axis=axis, keepdims=True)
    total = sum(centred * centred, axis=axis, keepdims=keepdims)
    freedom = float(count - correction)
    return total / (freedom if freedom > 0 else math.nan)


@function
@in_float32
def std(x: ArrayLike, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes; its derivative at variance 0 is defined as 0."""
    return _safe_sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def _safe_sqrt(x: Tensor) -> Tensor:
    """The square root with derivative 0 at 0, where the true one is infinite."""
    zero = x == 0.0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


@function
@in_float32
def norm(x: ArrayLike, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The p-norm of vectors: (sum of |x| ** ord) ** (1 / ord). Its derivative at zero is defined as 0.

    >>> norm(as_tensor([3.0, 4.0]))
    Tensor(5., dtype=float32)
    """
    x = as_float(as_tensor(x), "norm")
    if ord == math.inf:
        return max(abs(x), axis=axis, keepdims=keepdims)
    if ord == 1:
        return sum(abs(x), axis=axis, keepdims=keepdims)
    if ord == 2:
        return _safe_sqrt(sum(x * x, axis=axis, keepdims=keepdims))
    if ord <= 0:
        raise UserError("norm", f"an order above 0 is required, got {ord}.")
    total = sum(abs(x) ** ord, axis=axis, keepdims=keepdims)
    zero = total == 0.0
    return where(zero, 0.0, where(zero, 1.0, total) ** (1 / ord))


@function
@in_float32
def logsumexp(x: ArrayLike, *, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow."""
    x = as_float(as_tensor(x), "logsumexp")
    axes = normal_axes("logsumexp", axis, x.ndim)
    if builtins.any(x.shape[a] == 0 for a in axes):
        return log(sum(x, axis=axes, keepdims=keepdims))  # of no elements: -inf
    top = stop_gradient(max(x, axis=axes, keepdims=True))
    top = where(isfinite(top), top, 0.0)
    total = log(sum(exp(x - top), axis=axes, keepdims=True)) + top
    return total if keepdims else squeeze(total, axes)


@function
@in_float32
@as_vector
def softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """exp(x), scaled so that it sums to 1 along the axis.

    >>> softmax(as_tensor([0.0, 0.0]))
    Tensor([0.5, 0.5], dtype=float32)
    """
    x = as_float(as_tensor(x), "softmax")
    axis = normal_axis("softmax", axis, x.ndim)
    if x.shape[axis] == 0:
        return x
    raised = exp(x - stop_gradient(max(x, axis=axis, keepdims=True)))
    return raised / sum(raised, axis=axis, keepdims=True)


@function
@in_float32
@as_vector
def log_softmax(x: ArrayLike, axis: int = -1) -> Tensor:
    """The logarithm of softmax, exact also where softmax is nearly 0."""
    x = as_float(as_tensor(x), "log_softmax")
    axis = normal_axis("log_softmax", axis, x.ndim)
    if x.shape[axis] == 0:
        return x
    centred = x - stop_gradient(max(x, axis=axis, keepdims=True))
    return centred - log(sum(exp(centred), axis=axis, keepdims=True))


@function
def diff(x: ArrayLike, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Tensor:
    """The n-th differences of adjacent elements along an axis, after adding `prepend` and `append`.

    Numbers as `prepend` and `append` broadcast along the other axes. With n = 0, x is returned without them, as in NumPy.

    >>> diff(as_tensor([1, 4, 9])).tolist()
    [3, 5]
    """
    x = as_tensor(x)
    axis = normal_axis("diff", axis, x.ndim)
    n = whole("diff", "number of times", n)
    if n == 0:
        return x
    parts = [x if p is x else _end(x, p, axis) for p in (prepend, x, append) if p is not None]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    for _ in range(n):
        size = x.shape[axis]
        after, before = cut(x, axis, min(1, size), size), cut(x, axis, 0, builtins.max(size - 1, 0))
        x = after != before if x.dtype is bool_ else after - before
    return x


def _end(x: Tensor, value: Any, axis: int) -> Tensor:
    """`prepend` or `append` as a tensor; a number has size 1 along the axis."""
    end = as_tensor(value, x.dtype)
    return end if end.ndim else broadcast_to(end, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
