"""Random changes of pixels where they are: colours, erased boxes, blur; and two steps for all: to floats, to mean 0.

Each picture of a batch gets its own numbers. In use the random ones give back the picture.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import random
from ..dtypes import DEFAULT_FLOAT, float32
from ..errors import UserError
from ..nn import settings as nn_settings
from ..nn.module import Module
from ..ops.contract import matmul
from ..ops.convert import asarray
from ..ops.creation import iota
from ..ops.elementwise import exp, floor, maximum, minimum, where
from ..ops.math import clip
from ..ops.movement import cut, matrix_transpose, reshape
from ..ops.reduce import max as greatest
from ..ops.reduce import min as least
from ..ops.reduce import sum as total
from ..ops.statistics import mean
from ..tensor import ArrayLike, Tensor, as_tensor
from . import settings
from .geometry import box_sizes
from .settings import Range

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601: how bright red, green and blue look


class ToFloat(Module):
    """y = x / 255 for uint8 pixels, as float32 in [0, 1]; floats stay as they are. In use too."""

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if x.dtype.is_float:
            return x
        if x.dtype.name != "uint8":
            raise UserError(
                "ToFloat", f"uint8 or floats are required, got {x.dtype.name}. Divide by the largest value."
            )
        return x.astype(DEFAULT_FLOAT) * (1.0 / 255.0)


class Normalize(Module):
    """y = (x - mean) / std, a number for each channel or one for all. In use too."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (_tuple(v) for v in (mean, std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise UserError("Normalize", f"as many means as deviations are required, got {mean!r} and {std!r}.")
        if not all(s > 0.0 for s in self.std):
            raise UserError("Normalize", f"deviations above 0 are required, got {std!r}.")

    def forward(self, x: ArrayLike) -> Tensor:
        x = settings.pictures("Normalize", x)
        if len(self.mean) not in (1, x.shape[1]):
            raise UserError("Normalize", f"pictures with {len(self.mean)} channels are required, got shape {x.shape}.")
        inverse = [1.0 / s for s in self.std]
        return x * _by_channel(inverse, x) - _by_channel([m * i for m, i in zip(self.mean, inverse, strict=True)], x)


def _tuple(value: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)


def _by_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return constant(np.reshape(values, (-1, 1, 1)), like)


def constant(values: np.ndarray, like: Tensor) -> Tensor:
    """Known numbers, where and in what dtype the pictures are."""
    return asarray(values, dtype=like.dtype, device=like.device)


def grey(x: Tensor) -> Tensor:
    """How bright the pixels look: (batch, 1, height, width)."""
    return x if x.shape[1] == 1 else total(x * _by_channel(LUMA, x), axis=1, keepdims=True)


def per_picture(values: Tensor, like: Tensor) -> Tensor:
    """A number for each picture, spread over its pixels."""
    return reshape(values, (-1, 1, 1, 1)).astype(like.dtype)


class ColorJitter(Module):
    """Brightness, contrast, saturation, then hue, each changed by a random amount.

    x * b; mean + c * (x - mean) with the mean grey of the picture; grey + s * (x - grey); and a turn of the hue (HSV).
    b, c and s lie in 1 - d..1 + d (or in a pair (low, high)), the hue moves by a part of the circle in -d..d, at most
    half of it. After each step, values are kept within `limits`; None: they are not. Pictures in grey have no
    saturation and no hue.
    """

    def __init__(
        self,
        brightness: Range = 0.0,
        contrast: Range = 0.0,
        saturation: Range = 0.0,
        hue: Range = 0.0,
        limits: Sequence[float] | None = (0.0, 1.0),
    ) -> None:
        self.brightness = _factors("brightness", brightness)
        self.contrast = _factors("contrast", contrast)
        self.saturation = _factors("saturation", saturation)
        self.hue = settings.span("ColorJitter", "hue", hue, -0.5, 0.5)
        self.limits = None if limits is None else settings.span("ColorJitter", "limits", limits)

    def forward(self, x: ArrayLike) -> Tensor:
        x = settings.coloured("ColorJitter", x)
        if not self.training:
            return x
        if self.brightness != (1.0, 1.0):
            x = self._kept(x * self._draw(self.brightness, x))
        if self.contrast != (1.0, 1.0):
            x = self._kept(blended(mean(grey(x), axis=(1, 2, 3), keepdims=True), x, self._draw(self.contrast, x)))
        if x.shape[1] == 1:
            return x
        if self.saturation != (1.0, 1.0):
            x = self._kept(blended(grey(x), x, self._draw(self.saturation, x)))
        return x if self.hue == (0.0, 0.0) else turned_hue(x, self._draw(self.hue, x))

    def _draw(self, span: tuple[float, float], like: Tensor) -> Tensor:
        return per_picture(random.uniform((len(like),), *span), like)

    def _kept(self, x: Tensor) -> Tensor:
        return x if self.limits is None else clip(x, *self.limits)


def _factors(what: str, value: Range) -> tuple[float, float]:
    """d as the range 1 - d..1 + d, nothing below 0."""
    given = value if isinstance(value, Sequence) else (max(0.0, 1.0 - value), 1.0 + value)
    return settings.span("ColorJitter", what, given, 0.0)


def blended(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """base at factor 0, x at factor 1, beyond it above."""
    return base + (x - base) * factor


def turned_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Colours (batch, 3, ...) with their hue moved by a part of the circle; the largest and least of r, g, b stay."""
    high, low = greatest(x, axis=1, keepdims=True), least(x, axis=1, keepdims=True)
    r, g, b = (cut(x, 1, i, i + 1) for i in range(3))
    spread = high - low
    scale = 1.0 / where(spread > 0.0, spread, 1.0)
    sector = where(high == r, (g - b) * scale, where(high == g, (b - r) * scale + 2.0, (r - g) * scale + 4.0))
    phase = sector + turn * 6.0 + _by_channel([5.0, 3.0, 1.0], x)
    k = phase - floor(phase * (1.0 / 6.0)) * 6.0
    return high - spread * maximum(minimum(minimum(k, 4.0 - k), 1.0), 0.0)


class RandomGrayscale(Module):
    """All channels as bright as the pixel looks, with probability p."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = settings.chance("RandomGrayscale", p)

    def forward(self, x: ArrayLike) -> Tensor:
        x = settings.coloured("RandomGrayscale", x)
        if not self.training or self.p == 0.0 or x.shape[1] == 1:
            return x
        return where(random.bernoulli(self.p, (len(x), 1, 1, 1)), grey(x), x)


class RandomErasing(Module):
    """A random box set to a value, with probability p (Zhong et al. 2020); scale and ratio as in RandomResizedCrop."""

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float = 0.0,
    ) -> None:
        self.p, self.value = settings.chance("RandomErasing", p), float(value)
        self.scale = settings.span("RandomErasing", "scale", scale, 0.0, 1.0)
        self.ratio = settings.span("RandomErasing", "ratio", ratio, 1e-3, 1e3)

    def forward(self, x: ArrayLike) -> Tensor:
        x = settings.pictures("RandomErasing", x)
        if not self.training or self.p == 0.0:
            return x
        count, size = len(x), (x.shape[2], x.shape[3])
        heights, widths = box_sizes(count, size, self.scale, self.ratio)
        starts = [random.uniform((count,)) * (n - m) for n, m in zip(size, (heights, widths), strict=True)]
        chosen = random.bernoulli(self.p, (count, 1, 1, 1))
        return where(chosen & inside_box(size, starts, [heights, widths]), asarray(self.value, dtype=x.dtype), x)


def inside_box(size: tuple[int, int], starts: Sequence[Tensor], sizes: Sequence[Tensor]) -> Tensor:
    """Which pixels lie in the box of their picture, by their middles: (batch, 1, height, width)."""
    inside = []
    for axis, (start, extent) in enumerate(zip(starts, sizes, strict=True)):
        shape = (1, 1, -1, 1) if axis == 0 else (1, 1, 1, -1)
        middle = reshape(iota(size[axis]).astype(float32) + 0.5, shape)
        first = reshape(start, (-1, 1, 1, 1))
        inside.append((middle >= first) & (middle < first + reshape(extent, (-1, 1, 1, 1))))
    return inside[0] & inside[1]


class GaussianBlur(Module):
    """Smoothed by exp(-d**2 / (2 s**2)) with a random s, over size x size pixels; the border is mirrored."""

    def __init__(self, size: int = 3, sigma: Sequence[float] = (0.1, 2.0), p: float = 1.0) -> None:
        self.size = nn_settings.count("GaussianBlur", "pixels", size)
        if self.size % 2 == 0:
            raise UserError("GaussianBlur", f"an odd size is required, so that there is a middle, got {size}.")
        self.sigma = settings.span("GaussianBlur", "sigma", sigma, 1e-3)
        self.p = settings.chance("GaussianBlur", p)

    def forward(self, x: ArrayLike) -> Tensor:
        x = settings.pictures("GaussianBlur", x)
        if not self.training or self.p == 0.0 or self.size == 1:
            return x
        sigma = random.uniform((len(x),), *self.sigma)
        weights = [exp(-(d * d) / (2.0 * sigma * sigma)) for d in range(self.size // 2 + 1)]
        whole = weights[0] + sum(weights[1:], start=0.0) * 2.0
        taps = [per_picture(w / whole, x) for w in weights]
        smooth = matmul(matmul(_band(taps, x.shape[2]), x), matrix_transpose(_band(taps, x.shape[3])))
        return smooth if self.p == 1.0 else where(random.bernoulli(self.p, (len(x), 1, 1, 1)), smooth, x)


def _band(taps: Sequence[Tensor], n: int) -> Tensor:
    """A symmetric filter along an axis, as a matrix for each picture: taps are the weights at distance 0, 1, 2, ...

    A product with it is faster than sums of shifted pictures: a border that mirrors costs nothing, it is in the matrix.
    """
    parts = [constant(_neighbours(n, d), t) * t for d, t in enumerate(taps)]
    return sum(parts[1:], start=parts[0])


def _neighbours(n: int, distance: int) -> np.ndarray:
    """The matrix that adds up the two elements at a distance, of n; beyond the border lies its mirror."""
    matrix, mirrored = np.zeros((n, n)), np.pad(np.arange(n), distance, "reflect")
    for place in {distance, -distance}:
        np.add.at(matrix, (np.arange(n), mirrored[distance + place :][:n]), 1.0)
    return matrix
