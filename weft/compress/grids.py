"""Grids: the numbers that a quantized tensor can have, x = (q - zero) * scale for integers q of 2 to 16 bits.

A symmetric grid has zero = 0. An affine one shifts zero so that the range may be any [low, high]. A fixed-point grid (Qm.n) is symmetric with a
scale of 2^-n. Scale and zero are scalars, or per-channel along an axis.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import UserError
from ..records import dataclass

BITS = range(2, 17)


@dataclass(frozen=True)
class Grid:
    """q = clip(round(x / scale) + zero, low, high); x = (q - zero) * scale."""

    bits: int
    signed: bool
    scale: np.ndarray  # float32, of shape () or (channels,)
    zero: np.ndarray  # int32, of the same shape
    axis: int | None = None  # of the channels, if scale and zero are per-channel

    @property
    def low(self) -> int:
        """The smallest integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest integer."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def dtype(self) -> str:
        """The smallest integer dtype that holds its integers."""
        return f"{'' if self.signed else 'u'}int{8 if self.bits <= 8 else 16 if self.bits <= 16 else 32}"

    @property
    def fraction(self) -> int:
        """The bits after the radix point of a fixed-point grid: n of Qm.n, where scale = 2^-n."""
        return -round(math.log2(float(self.scale)))

    def __str__(self) -> str:
        if self.axis is not None:
            return f"{self.dtype}, {self.bits} bits, {len(self.scale)} channels"
        if not self.zero and 2.0**-self.fraction == self.scale:  # m + n bits and a sign; U: no sign
            return f"{'' if self.signed else 'U'}Q{self.bits - self.signed - self.fraction}.{self.fraction}"
        return f"{self.dtype}, {self.bits} bits, scale {float(self.scale):.4g}, zero {int(self.zero)}"

    def quantize(self, x: np.ndarray) -> np.ndarray:
        """The integers of an array: ties are rounded to even."""
        scale, zero = self.along(self.scale, x.ndim), self.along(self.zero, x.ndim)
        return np.asarray(np.clip(np.rint(x / scale) + zero, self.low, self.high), self.dtype)

    def dequantize(self, q: np.ndarray) -> np.ndarray:
        """The real values of integers."""
        scale, zero = self.along(self.scale, q.ndim), self.along(self.zero, q.ndim)
        return np.asarray((q.astype(np.int32) - zero) * scale, np.float32)

    def along(self, value: np.ndarray, ndim: int) -> np.ndarray:
        """Scale or zero in a shape that broadcasts with a tensor of `ndim` dimensions."""
        return value if self.axis is None else value.reshape(shape_along(self.axis, ndim))


def shape_along(axis: int, ndim: int) -> list[int]:
    """The shape of values along one axis that broadcasts with a tensor of `ndim` dimensions; the last axis may be -1.

    >>> shape_along(1, 3), shape_along(-1, 3)
    ([1, -1, 1], [1, 1, -1])
    """
    shape = [1] * ndim
    shape[axis] = -1
    return shape


def check_bits(where: str, bits: int, allowed: range = BITS) -> int:
    """Check a number of bits."""
    if isinstance(bits, bool) or bits not in allowed:
        raise UserError(where, f"{allowed[0]} to {allowed[-1]} bits are required, got {bits!r}.")
    return int(bits)


def symmetric(bits: int, low: np.ndarray, high: np.ndarray, axis: int | None = None) -> Grid:
    """The grid with zero = 0 that covers these ranges. Non-negative ranges get an unsigned grid, others use -high to high only."""
    signed = bool(np.any(np.asarray(low) < 0))
    top = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    largest = np.maximum(np.abs(low), np.abs(high))
    return Grid(bits, signed, _scale(largest / top), np.zeros(np.shape(largest), np.int32), axis)


def affine(bits: int, low: np.ndarray, high: np.ndarray, axis: int | None = None) -> Grid:
    """The unsigned grid that covers these ranges, and represents 0 exactly: padding must stay 0.

    >>> grid = affine(8, np.float32(-1.0), np.float32(4.1))
    >>> float(grid.scale), int(grid.zero)
    (0.019999999552965164, 50)
    """
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    top = (1 << bits) - 1
    scale = _scale((high - low) / top)
    return Grid(bits, False, scale, np.clip(np.rint(-low / scale), 0, top).astype(np.int32), axis)


def fixed_point_grid(bits: int, signed: bool, fraction: int) -> Grid:
    """The grid Qm.n with n bits after the radix point; n may be negative, or larger than the number of bits.

    >>> str(fixed_point_grid(8, True, 5)), str(fixed_point_grid(8, False, 9))
    ('Q2.5', 'UQ-1.9')
    """
    return Grid(bits, signed, np.asarray(2.0**-fraction, np.float32), np.asarray(0, np.int32))


def _scale(value: np.ndarray) -> np.ndarray:
    """The scale, or 1 for a channel of zeros, which is exact with any scale."""
    scale = np.asarray(value, np.float32)
    return np.where(scale > 0, scale, np.float32(1.0))
