"""Pooling in 1, 2 and 3 dimensions: max and average, adaptive and global. x is (batch, channels, spatial...)."""

from __future__ import annotations

import math

import numpy as np

from ..errors import UserError
from ..graph.node import Shape
from ..tensor import ArrayLike, Tensor, as_tensor, function, number
from .conv import Padding, Sizes, normal_padding, per_axis
from .convert import asarray
from .declare import as_float, in_float32
from .elementwise import where
from .indexing import take
from .movement import reshape
from .reduce import max as reduce_max
from .reduce import sum
from .statistics import mean
from .window import Pairs, out_size, window_max, window_sum


@function
def max_pool(
    x: ArrayLike,
    size: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The maximum of each window. `ceil_mode` keeps a last window that fits only partly.

    >>> max_pool(as_tensor([[[1.0, 3.0, 2.0, 5.0]]]), 2).tolist()
    [[[3.0, 5.0]]]
    """
    x = _spatial("max_pool", x)
    window = _window("max_pool", x, size, stride, padding, dilation, ceil_mode)
    return window_max(x, *_with_front(*window))


@function
@in_float32
def avg_pool(
    x: ArrayLike,
    size: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window; padding counts as zeros, or is excluded.

    >>> avg_pool(as_tensor([[[1.0, 3.0, 2.0, 6.0]]]), 2).tolist()
    [[[2.0, 4.0]]]
    """
    x = as_float(_spatial("avg_pool", x), "avg_pool")
    kernel, strides, pairs, dilations = _window("avg_pool", x, size, stride, padding, 1, ceil_mode)
    total = window_sum(x, *_with_front(kernel, strides, pairs, dilations))
    asked = normal_padding("avg_pool", padding, x.shape[2:], kernel, strides, dilations)
    return total / _counts(x, kernel, strides, pairs, asked if count_include_pad else ((0, 0),) * len(kernel))


def _counts(x: Tensor, kernel: Shape, strides: Shape, pairs: Pairs, counted: Pairs) -> Tensor | float:
    """The number of elements per window: a number, or a tensor if windows at the border hold fewer."""
    if pairs == counted:
        return float(math.prod(kernel))
    counts = np.ones((), np.int64)
    for n, k, s, (lo, hi), (a, b) in zip(x.shape[2:], kernel, strides, pairs, counted, strict=True):
        starts = np.arange(out_size(n, k, s, (lo, hi), 1)) * s - lo
        inside = np.minimum(starts + k, n + b) - np.maximum(starts, -a)
        counts = counts[..., None] * np.maximum(inside, 1)
    return asarray(counts, dtype=x.dtype)


def _spatial(name: str, x: ArrayLike) -> Tensor:
    x = as_tensor(x)
    if not 3 <= x.ndim <= 5:
        raise UserError(name, f"(batch, channels, 1 to 3 spatial dimensions) is required, got shape {x.shape}.")
    return x


def _window(
    name: str, x: Tensor, size: Sizes, stride: Sizes | None, padding: Padding, dilation: Sizes, ceil_mode: bool
) -> tuple[Shape, Shape, Pairs, Shape]:
    ndim = x.ndim - 2
    kernel, dilations = per_axis(name, "size", size, ndim), per_axis(name, "dilation", dilation, ndim)
    strides = kernel if stride is None else per_axis(name, "stride", stride, ndim)
    pairs = normal_padding(name, padding, x.shape[2:], kernel, strides, dilations)
    if ceil_mode:
        facts = zip(x.shape[2:], kernel, strides, dilations, pairs, strict=True)
        pairs = tuple((p[0], p[1] + _extra(n, k, s, d, p)) for n, k, s, d, p in facts)
    return kernel, strides, pairs, dilations


def _extra(n: int, k: int, s: int, d: int, padding: tuple[int, int]) -> int:
    """The padding that lets one more window fit, if that window would start inside the input or the padding before it."""
    count = out_size(n, k, s, padding, d)
    covered = (count - 1) * s + (k - 1) * d + 1
    if covered == n + padding[0] + padding[1] or count * s >= n + padding[0]:
        return 0
    return covered + s - (n + padding[0] + padding[1])


def _with_front(kernel: Shape, strides: Shape, pairs: Pairs, dilations: Shape) -> tuple[Shape, Shape, Pairs, Shape]:
    """The window with entries of size 1 for batch and channels."""
    return (1, 1, *kernel), (1, 1, *strides), ((0, 0), (0, 0), *pairs), (1, 1, *dilations)


@function
def global_max_pool(x: ArrayLike) -> Tensor:
    """The maximum of each channel: (batch, channels)."""
    x = _spatial("global_max_pool", x)
    return reduce_max(x, axis=range(2, x.ndim))


@function
def global_avg_pool(x: ArrayLike) -> Tensor:
    """The mean of each channel: (batch, channels)."""
    x = _spatial("global_avg_pool", x)
    return mean(x, axis=range(2, x.ndim))


@function
@in_float32
def adaptive_avg_pool(x: ArrayLike, size: Sizes) -> Tensor:
    """The mean over `size` windows of nearly equal size.

    >>> adaptive_avg_pool(as_tensor([[[1.0, 2.0, 3.0]]]), 2).tolist()
    [[[1.5, 2.5]]]
    """
    x = as_float(_spatial("adaptive_avg_pool", x), "adaptive_avg_pool")
    for axis, (n, m) in enumerate(_targets("adaptive_avg_pool", x, size), 2):
        counts = asarray([float(b - a) for a, b in _ranges(n, m)], dtype=x.dtype)
        x = sum(_windows(x, axis, m, 0.0), axis=axis + 1) / reshape(counts, (m, *[1] * (x.ndim - axis - 1)))
    return x


@function
def adaptive_max_pool(x: ArrayLike, size: Sizes) -> Tensor:
    """The maximum over `size` windows of nearly equal size."""
    x = _spatial("adaptive_max_pool", x)
    lowest = -math.inf if x.dtype.is_float else int(np.iinfo(x.dtype.numpy).min)
    for axis, (_, m) in enumerate(_targets("adaptive_max_pool", x, size), 2):
        x = reduce_max(_windows(x, axis, m, lowest), axis=axis + 1)
    return x


def _windows(x: Tensor, axis: int, m: int, filler: float) -> Tensor:
    """One axis as (windows, elements), with shorter windows padded."""
    n = x.shape[axis]
    if n % m == 0:
        return reshape(x, (*x.shape[:axis], m, n // m, *x.shape[axis + 1 :]))
    ranges = _ranges(n, m)
    width = max(b - a for a, b in ranges)
    places = np.array([[min(a + i, b - 1) for i in range(width)] for a, b in ranges])
    real = np.array([[a + i < b for i in range(width)] for a, b in ranges])
    mask = asarray(real.reshape(m, width, *[1] * (x.ndim - axis - 1)))
    return where(mask, take(x, asarray(places), axis=axis), number(filler, x.dtype))


def _targets(name: str, x: Tensor, size: Sizes) -> list[tuple[int, int]]:
    wanted = per_axis(name, "size", size, x.ndim - 2)
    if any(n == 0 for n in x.shape[2:]):
        raise UserError(name, f"there is nothing to pool in shape {x.shape}.")
    return list(zip(x.shape[2:], wanted, strict=True))


def _ranges(n: int, m: int) -> list[tuple[int, int]]:
    return [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
