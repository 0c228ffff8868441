"""Pooling layers: max, average, global, adaptive, LP. x is (batch, channels, spatial...)."""

from __future__ import annotations

import math
from typing import ClassVar

from ..ops import pooling as ops
from ..ops.conv import Padding, Sizes, per_axis
from ..ops.declare import in_float32
from ..ops.elementwise import abs, where
from ..tensor import ArrayLike, Tensor
from . import checks
from .module import Module


class _MaxPool(Module):
    """Base class of max pooling of all ranks."""

    rank: ClassVar[int]

    def __init__(
        self,
        size: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Padding = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
    ) -> None:
        name, rank = type(self).__name__, self.rank
        self.size = checks.check_sizes(name, "size", size, rank)
        self.stride = None if stride is None else checks.check_sizes(name, "stride", stride, rank)
        self.padding = checks.check_padding(name, padding, rank)
        self.dilation = checks.check_sizes(name, "dilation", dilation, rank)
        self.ceil_mode = bool(ceil_mode)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.max_pool(
            checks.check_spatial(type(self).__name__, x, self.rank), self.size, stride=self.stride, padding=self.padding,
            dilation=self.dilation, ceil_mode=self.ceil_mode,
        )  # fmt: skip


class MaxPool1d(_MaxPool):
    """The maximum of each window of `size` elements, every `stride` (default: the size) elements."""

    rank = 1


class MaxPool2d(_MaxPool):
    """The maximum of each window of height and width `size`, every `stride` (default: the size) positions."""

    rank = 2


class MaxPool3d(_MaxPool):
    """The maximum of each window of depth, height and width `size`, every `stride` (default: the size) positions."""

    rank = 3


class _AvgPool(Module):
    """Base class of average pooling of all ranks."""

    rank: ClassVar[int]

    def __init__(
        self,
        size: Sizes,
        *,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        name, rank = type(self).__name__, self.rank
        self.size = checks.check_sizes(name, "size", size, rank)
        self.stride = None if stride is None else checks.check_sizes(name, "stride", stride, rank)
        self.padding = checks.check_padding(name, padding, rank)
        self.ceil_mode, self.count_include_pad = bool(ceil_mode), bool(count_include_pad)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.avg_pool(
            checks.check_spatial(type(self).__name__, x, self.rank), self.size, stride=self.stride, padding=self.padding,
            ceil_mode=self.ceil_mode, count_include_pad=self.count_include_pad,
        )  # fmt: skip


class AvgPool1d(_AvgPool):
    """The mean of each window of `size` elements, every `stride` (default: the size) elements."""

    rank = 1


class AvgPool2d(_AvgPool):
    """The mean of each window of height and width `size`, every `stride` (default: the size) positions."""

    rank = 2


class AvgPool3d(_AvgPool):
    """The mean of each window of depth, height and width `size`, every `stride` (default: the size) positions."""

    rank = 3


class GlobalAvgPool(Module):
    """The mean of each channel: (batch, channels, spatial...) becomes (batch, channels)."""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.global_avg_pool(x)


class GlobalMaxPool(Module):
    """The maximum of each channel: (batch, channels, spatial...) becomes (batch, channels)."""

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.global_max_pool(x)


class _AdaptiveAvgPool(Module):
    rank: ClassVar[int]

    def __init__(self, size: Sizes) -> None:
        self.size = checks.check_sizes(type(self).__name__, "size", size, self.rank)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.adaptive_avg_pool(checks.check_spatial(type(self).__name__, x, self.rank), self.size)


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The mean over `size` windows, of nearly equal size: window i of m over n elements is [i n / m, (i + 1) n / m)."""

    rank = 1


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The mean over `size` windows in height and width, of nearly equal size; see AdaptiveAvgPool1d."""

    rank = 2


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The mean over `size` windows in depth, height and width, of nearly equal size; see AdaptiveAvgPool1d."""

    rank = 3


class _AdaptiveMaxPool(Module):
    rank: ClassVar[int]

    def __init__(self, size: Sizes) -> None:
        self.size = checks.check_sizes(type(self).__name__, "size", size, self.rank)

    def forward(self, x: ArrayLike) -> Tensor:
        return ops.adaptive_max_pool(checks.check_spatial(type(self).__name__, x, self.rank), self.size)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The maximum of `size` windows, of nearly equal size; see AdaptiveAvgPool1d."""

    rank = 1


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The maximum of `size` windows in height and width, of nearly equal size; see AdaptiveAvgPool1d."""

    rank = 2


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The maximum of `size` windows in depth, height and width, of nearly equal size; see AdaptiveAvgPool1d."""

    rank = 3


class LPPool2d(Module):
    """y = (sum of |x|**norm over each window)**(1 / norm): norm 1 is the sum, a large norm approximates the maximum"""

    def __init__(self, norm: float, size: Sizes, *, stride: Sizes | None = None, padding: Padding = 0) -> None:
        self.norm = checks.check_at_least("LPPool2d", "norm", norm, 1.0)
        self.size = per_axis("LPPool2d", "size", size, 2)
        self.stride = None if stride is None else checks.check_sizes("LPPool2d", "stride", stride, 2)
        self.padding = checks.check_padding("LPPool2d", padding, 2)

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_spatial("LPPool2d", x, 2)
        return _lp_pool(x, self.norm, self.size, self.stride, self.padding)


@in_float32
def _lp_pool(x: Tensor, norm: float, size: Sizes, stride: Sizes | None, padding: Padding) -> Tensor:
    mean = ops.avg_pool(
        abs(x) ** norm, size, stride=stride, padding=padding
    )  # padding is zeros, which do not contribute
    total = mean * float(math.prod(per_axis("LPPool2d", "size", size, 2)))
    return where(total > 0.0, total ** (1.0 / norm), 0.0)  # the derivative at 0 is defined as 0
