"""Augmentations that change pixel values: colour jitter, erasing, blur; and the conversions ToFloat and Normalize.

Random augmentations sample new parameters for each image of a batch. In evaluation mode they are the identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import random
from ..dtypes import DEFAULT_FLOAT, float32
from ..errors import UserError
from ..nn import checks as nn_checks
from ..nn.module import Module
from ..ops.contract import matmul
from ..ops.convert import asarray
from ..ops.creation import iota
from ..ops.elementwise import exp, floor, maximum, minimum, where
from ..ops.math import clip
from ..ops.movement import cut, matrix_transpose, reshape
from ..ops.reduce import max as reduce_max
from ..ops.reduce import min as reduce_min
from ..ops.reduce import sum as total
from ..ops.statistics import mean
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .checks import Range
from .geometry import box_sizes

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601 luma weights of red, green and blue


class ToFloat(Module):
    """y = x / 255 for uint8 pixels, as float32 in [0, 1]; floats are unchanged. Also applied in evaluation mode."""

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
    """y = (x - mean) / std, with one value per channel or one for all. Also applied in evaluation mode."""

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (_tuple(v) for v in (mean, std))
        if len(self.mean) != len(self.std) or not self.mean:
            raise UserError("Normalize", f"mean and std must have the same length, got {mean!r} and {std!r}.")
        if not all(s > 0.0 for s in self.std):
            raise UserError("Normalize", f"std must be above 0, got {std!r}.")

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_images("Normalize", x)
        if len(self.mean) not in (1, x.shape[1]):
            raise UserError("Normalize", f"images with {len(self.mean)} channels are required, got shape {x.shape}.")
        inverse = [1.0 / s for s in self.std]
        return x * _per_channel(inverse, x) - _per_channel([m * i for m, i in zip(self.mean, inverse, strict=True)], x)


def _tuple(value: float | Sequence[float]) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return constant(np.reshape(values, (-1, 1, 1)), like)


def constant(values: np.ndarray, like: Tensor) -> Tensor:
    """A constant tensor with the dtype and device of `like`."""
    return asarray(values, dtype=like.dtype, device=like.device)


def luminance(x: Tensor) -> Tensor:
    """The luminance of each pixel: (batch, 1, height, width)."""
    return x if x.shape[1] == 1 else total(x * _per_channel(LUMA, x), axis=1, keepdims=True)


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """One value per image, reshaped to broadcast over its pixels."""
    return reshape(values, (-1, 1, 1, 1)).astype(like.dtype)


class ColorJitter(Module):
    """Change brightness, contrast, saturation and hue, in this order, by random amounts.

    x * b; m + c * (x - m) with the mean luminance m; l + s * (x - l) with the luminance l; and a shift of the hue (HSV).
    b, c and s are sampled from [1 - d, 1 + d] (or from a pair (low, high)), the hue shift from [-d, d] as a fraction of
    the colour circle, at most 0.5. After each step, values are clipped to `limits`, unless it is None. Grayscale images
    have no saturation and no hue.
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
        self.hue = checks.check_range("ColorJitter", "hue", hue, -0.5, 0.5)
        self.limits = None if limits is None else checks.check_range("ColorJitter", "limits", limits)

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_channels("ColorJitter", x)
        if not self.training:
            return x
        if self.brightness != (1.0, 1.0):
            x = self._clipped(x * self._draw(self.brightness, x))
        if self.contrast != (1.0, 1.0):
            x = self._clipped(blend(mean(luminance(x), axis=(1, 2, 3), keepdims=True), x, self._draw(self.contrast, x)))
        if x.shape[1] == 1:
            return x
        if self.saturation != (1.0, 1.0):
            x = self._clipped(blend(luminance(x), x, self._draw(self.saturation, x)))
        return x if self.hue == (0.0, 0.0) else shift_hue(x, self._draw(self.hue, x))

    def _draw(self, span: tuple[float, float], like: Tensor) -> Tensor:
        return per_image(random.uniform((len(like),), *span), like)

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.limits is None else clip(x, *self.limits)


def _factors(what: str, value: Range) -> tuple[float, float]:
    """Convert d to the range (max(0, 1 - d), 1 + d)."""
    given = value if isinstance(value, Sequence) else (max(0.0, 1.0 - value), 1.0 + value)
    return checks.check_range("ColorJitter", what, given, 0.0)


def blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """Linear interpolation from base (factor 0) to x (factor 1), extrapolated for larger factors."""
    return base + (x - base) * factor


def shift_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue of colours (batch, 3, ...) by a fraction of the circle; max and min over r, g, b are preserved."""
    high, low = reduce_max(x, axis=1, keepdims=True), reduce_min(x, axis=1, keepdims=True)
    r, g, b = (cut(x, 1, i, i + 1) for i in range(3))
    spread = high - low
    scale = 1.0 / where(spread > 0.0, spread, 1.0)
    sector = where(high == r, (g - b) * scale, where(high == g, (b - r) * scale + 2.0, (r - g) * scale + 4.0))
    phase = sector + turn * 6.0 + _per_channel([5.0, 3.0, 1.0], x)
    k = phase - floor(phase * (1.0 / 6.0)) * 6.0
    return high - spread * maximum(minimum(minimum(k, 4.0 - k), 1.0), 0.0)


class RandomGrayscale(Module):
    """Replace all channels by the luminance, with probability p."""

    def __init__(self, p: float = 0.1) -> None:
        self.p = checks.check_probability("RandomGrayscale", p)

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_channels("RandomGrayscale", x)
        if not self.training or self.p == 0.0 or x.shape[1] == 1:
            return x
        return where(random.bernoulli(self.p, (len(x), 1, 1, 1)), luminance(x), x)


class RandomErasing(Module):
    """Set a random box to a value, with probability p (Zhong et al. 2020); scale and ratio as in RandomResizedCrop."""

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float = 0.0,
    ) -> None:
        self.p, self.value = checks.check_probability("RandomErasing", p), float(value)
        self.scale = checks.check_range("RandomErasing", "scale", scale, 0.0, 1.0)
        self.ratio = checks.check_range("RandomErasing", "ratio", ratio, 1e-3, 1e3)

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_images("RandomErasing", x)
        if not self.training or self.p == 0.0:
            return x
        count, size = len(x), (x.shape[2], x.shape[3])
        heights, widths = box_sizes(count, size, self.scale, self.ratio)
        starts = [random.uniform((count,)) * (n - m) for n, m in zip(size, (heights, widths), strict=True)]
        chosen = random.bernoulli(self.p, (count, 1, 1, 1))
        return where(chosen & inside_box(size, starts, [heights, widths]), asarray(self.value, dtype=x.dtype), x)


def inside_box(size: tuple[int, int], starts: Sequence[Tensor], sizes: Sequence[Tensor]) -> Tensor:
    """A mask of the pixels whose centres lie in the box of their image: (batch, 1, height, width)."""
    inside = []
    for axis, (start, extent) in enumerate(zip(starts, sizes, strict=True)):
        shape = (1, 1, -1, 1) if axis == 0 else (1, 1, 1, -1)
        middle = reshape(iota(size[axis]).astype(float32) + 0.5, shape)
        first = reshape(start, (-1, 1, 1, 1))
        inside.append((middle >= first) & (middle < first + reshape(extent, (-1, 1, 1, 1))))
    return inside[0] & inside[1]


class GaussianBlur(Module):
    """Convolve with exp(-d**2 / (2 s**2)) for a random s, over size x size pixels; the border is reflected."""

    def __init__(self, size: int = 3, sigma: Sequence[float] = (0.1, 2.0), p: float = 1.0) -> None:
        self.size = nn_checks.check_count("GaussianBlur", "pixels", size)
        if self.size % 2 == 0:
            raise UserError("GaussianBlur", f"an odd size is required, got {size}.")
        self.sigma = checks.check_range("GaussianBlur", "sigma", sigma, 1e-3)
        self.p = checks.check_probability("GaussianBlur", p)

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_images("GaussianBlur", x)
        if not self.training or self.p == 0.0 or self.size == 1:
            return x
        sigma = random.uniform((len(x),), *self.sigma)
        weights = [exp(-(d * d) / (2.0 * sigma * sigma)) for d in range(self.size // 2 + 1)]
        whole = weights[0] + sum(weights[1:], start=0.0) * 2.0
        taps = [per_image(w / whole, x) for w in weights]
        smooth = matmul(matmul(_band_matrix(taps, x.shape[2]), x), matrix_transpose(_band_matrix(taps, x.shape[3])))
        return smooth if self.p == 1.0 else where(random.bernoulli(self.p, (len(x), 1, 1, 1)), smooth, x)


def _band_matrix(taps: Sequence[Tensor], n: int) -> Tensor:
    """A symmetric 1-D filter as one band matrix per image; taps are the weights at distance 0, 1, 2, ...

    A matrix product is faster than a sum of shifted images, and the matrix includes the reflected border.
    """
    parts = [constant(_neighbour_matrix(n, d), t) * t for d, t in enumerate(taps)]
    return sum(parts[1:], start=parts[0])


def _neighbour_matrix(n: int, distance: int) -> np.ndarray:
    """The (n, n) matrix that adds the two elements at a distance, with reflection at the border."""
    matrix, mirrored = np.zeros((n, n)), np.pad(np.arange(n), distance, "reflect")
    for place in {distance, -distance}:
        np.add.at(matrix, (np.arange(n), mirrored[distance + place :][:n]), 1.0)
    return matrix
