"""Pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Required, TypedDict, Unpack

import numpy as np

from ...ops.creation import zeros
from ...ops.elementwise import abs, astype, pow
from ...ops.movement import pad, reshape
from ...ops.reduce import max as reduce_max
from ...ops.reduce import sum as reduce_sum
from ...ops.statistics import mean
from ...ops.window import Pairs, window_argmax, window_max, window_sum
from ...tensor import Tensor
from ..registry import OnnxCall, op
from ..values import tensor
from .convolution import window_padding

Ints = tuple[int, ...]


class PoolAttributes(TypedDict, total=False):
    """The attributes of poolings."""

    kernel_shape: Required[Ints]
    auto_pad: str
    ceil_mode: int
    dilations: Ints
    pads: Ints
    strides: Ints


class Window:
    """Where the windows of a pooling lie."""

    def __init__(self, x: Tensor, given: PoolAttributes) -> None:
        ones = (1,) * (x.ndim - 2)
        self.size, self.kernel = x.shape[2:], given["kernel_shape"]
        self.stride, self.dilation = given.get("strides") or ones, given.get("dilations") or ones
        auto_pad, ceil = given.get("auto_pad", "NOTSET"), bool(given.get("ceil_mode", 0))
        self.asked = window_padding(auto_pad, given.get("pads"), self.size, self.kernel, self.stride, self.dilation)
        self.padding = [
            (a, b + (self._beyond(i) if ceil and auto_pad in ("NOTSET",) else 0)) for i, (a, b) in enumerate(self.asked)
        ]

    def _beyond(self, i: int) -> int:
        """The padding that a last window needs which fits only partly. It must not begin in the padding behind."""
        n, (a, b), s = self.size[i], self.asked[i], self.stride[i]
        extent = (self.kernel[i] - 1) * self.dilation[i] + 1
        count = -(-(n + a + b - extent) // s) + 1
        if (count - 1) * s >= n + a:
            count -= 1
        return max((count - 1) * s + extent - (n + a + b), 0)

    def of(self, function: Callable[..., Tensor], x: Tensor) -> Tensor:
        """A function of windows. Padding beyond the kernel is made before."""
        ones = (1, 1)
        return function(x, (*ones, *self.kernel), (*ones, *self.stride), self.pairs, (*ones, *self.dilation))

    @property
    def pairs(self) -> Pairs:
        return ((0, 0), (0, 0), *self.padding)

    def counts(self, with_padding: bool) -> np.ndarray:
        """How many elements (with those of the padding that was asked for) each window has."""
        total = np.ones((), np.int64)
        for i, n in enumerate(self.size):
            (a, b), (lo, hi) = self.padding[i], self.asked[i] if with_padding else (0, 0)
            extent = (self.kernel[i] - 1) * self.dilation[i] + 1
            starts = np.arange((n + a + b - extent) // self.stride[i] + 1) * self.stride[i] - a
            taps = starts[:, None] + np.arange(self.kernel[i]) * self.dilation[i]
            total = total[..., None] * ((taps >= -lo) & (taps < n + hi)).sum(1)
        return np.maximum(total, 1)


@op("MaxPool")
def max_pool(x: Tensor, *, storage_order: int = 0, call: OnnxCall, **attributes: Unpack[PoolAttributes]) -> Any:
    window = Window(x, attributes)
    y = window.of(window_max, x)
    if call.outputs < 2:
        return y
    places = window.of(window_argmax, x)
    return y, _column_major(places, x.shape) if storage_order else places


def _column_major(places: Tensor, shape: Ints) -> Tensor:
    """Flat indices of an image in column-major order."""
    area = int(np.prod(shape[2:]))
    rest, inside = places // area, places % area
    found = inside * 0
    step = 1
    below = area
    for n in shape[2:]:
        below //= n
        found = found + (inside // below) % n * step
        step *= n
    return rest * area + found


@op("AveragePool")
def average_pool(x: Tensor, *, count_include_pad: int = 0, **attributes: Unpack[PoolAttributes]) -> Tensor:
    window = Window(x, attributes)
    total = window.of(window_sum, astype(x, "float32") if x.dtype.is_half else x)
    counts = window.counts(bool(count_include_pad))
    if (counts == counts.flat[:1]).all():
        counts = counts.flat[:1].reshape(())
    return astype(total / astype(tensor(counts), total.dtype), x.dtype)


@op("LpPool")
def lp_pool(x: Tensor, *, p: int = 2, **attributes: Unpack[PoolAttributes]) -> Tensor:
    window = Window(x, attributes)
    return pow(window.of(window_sum, pow(abs(x), float(p))), 1.0 / p)


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


@op("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return mean(x, axis=_spatial(x), keepdims=True)


@op("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return reduce_max(x, axis=_spatial(x), keepdims=True)


@op("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return pow(reduce_sum(pow(abs(x), float(p)), axis=_spatial(x), keepdims=True), 1.0 / p)


@op("MaxUnpool", host=("output_shape",))
def max_unpool(
    x: Tensor,
    places: Tensor,
    output_shape: np.ndarray | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """Each value at the index where the maximum was, zeros elsewhere. Indices count in the size without `output_shape`."""
    rank = x.ndim - 2
    stride, flat = strides or (1,) * rank, pads or (0,) * 2 * rank
    size = [
        (n - 1) * s + k - flat[i] - flat[i + rank]
        for i, (n, s, k) in enumerate(zip(x.shape[2:], stride, kernel_shape, strict=True))
    ]
    shape = (*x.shape[:2], *size)
    y = zeros((int(np.prod(shape)),), dtype=x.dtype).at[reshape(places, (-1,))].set(reshape(x, (-1,)))
    y = reshape(y, shape)
    if output_shape is None:
        return y
    return pad(y, [(0, int(n) - m) for n, m in zip(output_shape, shape, strict=True)])
