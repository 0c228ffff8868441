"""Augmentation policies that sample operations for each image: RandAugment and TrivialAugment.

Applying all operations to all images and selecting one would cost all of them. Instead, every operation is a set of
parameters of two steps that all images share: one warp (shear, translate, rotate) for all rounds together, then one
colour change per round. Operations that are not sampled have the parameters of the identity.
"""

from __future__ import annotations

import math

from .. import random
from ..dtypes import float32
from ..errors import UserError
from ..nn import checks as nn_checks
from ..nn.module import Module
from ..ops.creation import full
from ..ops.elementwise import floor, where
from ..ops.math import clip
from ..ops.movement import cut, pad, reshape
from ..ops.reduce import max as reduce_max
from ..ops.reduce import min as reduce_min
from ..ops.statistics import mean
from ..records import dataclass
from ..tensor import ArrayLike, Tensor
from . import checks
from .colour import blend, luminance, per_image
from .geometry import affine
from .warp import WarpView, checked_border, view

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate",
    "brightness", "colour", "contrast", "sharpness", "posterize", "solarize", "autocontrast",
)  # fmt: skip


@dataclass(frozen=True)
class MagnitudeRanges:
    """The magnitude of each operation at full strength."""

    shear: float  # the slope
    translate: tuple[float, float]  # in pixels, down and to the right
    degrees: float
    enhance: float  # brightness, colour, contrast and sharpness: factors from 1 - enhance to 1 + enhance
    bits: float  # low bits of a pixel that posterize removes


class AugmentationPolicy(Module):
    """Base class of policies: samples `count` operations for each image."""

    def __init__(self, count: int, mode: str, fill: float) -> None:
        layer = type(self).__name__
        self.count = nn_checks.check_count(layer, "operations", count)
        self.mode, self.fill = checked_border(layer, mode), float(fill)

    def ranges(self, size: tuple[int, int]) -> MagnitudeRanges:
        """The magnitudes for images of this size."""
        raise UserError(type(self).__name__, "a subclass needs a method ranges(self, size).")

    def strengths(self, images: int) -> Tensor:
        """The strength for each image, from 0 to 1."""
        raise UserError(type(self).__name__, "a subclass needs a method strengths(self, images).")

    def forward(self, x: ArrayLike | WarpView) -> Tensor:
        layer = type(self).__name__
        v = x if isinstance(x, WarpView) else view(checks.check_channels(layer, x))
        checks.check_channels(layer, v.images)
        if not self.training:
            return v.sample()
        rounds = [self._sample(len(v.images)) for _ in range(self.count)]
        ranges = self.ranges(v.size)
        v = v.with_border(self.mode, self.fill)
        for sampled in rounds:
            v = sampled.warp(v, ranges)
        result = v.sample()
        for sampled in rounds:
            result = sampled.recolour(result, ranges)
        return result

    def _sample(self, images: int) -> _Sampled:
        chosen = random.integers(0, len(OPERATIONS), (images,))
        sign = where(random.bernoulli(0.5, (images,)), -1.0, 1.0)
        return _Sampled(chosen, sign, self.strengths(images).astype(float32))


@dataclass(frozen=True)
class _Sampled:
    """The sampled operation of each image, its sign and its strength."""

    chosen: Tensor
    sign: Tensor
    strength: Tensor

    def _is(self, name: str) -> Tensor:
        return self.chosen == OPERATIONS.index(name)

    def _amount(self, name: str, most: float) -> Tensor:
        """The signed magnitude of an operation for the images that sampled it, 0 for the others."""
        return where(self._is(name), self.sign * self.strength * most, 0.0)

    def warp(self, v: WarpView, ranges: MagnitudeRanges) -> WarpView:
        angle = self._amount("rotate", math.radians(ranges.degrees))
        down, right = (self._amount(f"translate_{a}", n) for a, n in zip("yx", ranges.translate, strict=True))
        slope, rise = (self._amount(f"shear_{a}", ranges.shear) for a in "xy")
        return affine(v, angle, slope, 1.0, down, right, rise)

    def recolour(self, x: Tensor, ranges: MagnitudeRanges) -> Tensor:
        x = self._enhance(x, ranges)
        threshold = where(self._is("solarize"), (1.0 - self.strength) * (256.0 / 255.0), 2.0)
        x = where(x >= per_image(threshold, x), 1.0 - x, x)
        step = 2.0 ** floor(self.strength * ranges.bits + 0.5)
        x = where(self._image_mask("posterize"), _posterize(x, per_image(step, x)), x)
        return where(self._image_mask("autocontrast"), _autocontrast(x), x)

    def _image_mask(self, name: str) -> Tensor:
        """A mask of the images that sampled an operation, broadcastable over pixels."""
        return reshape(self._is(name), (-1, 1, 1, 1))

    def _enhance(self, x: Tensor, ranges: MagnitudeRanges) -> Tensor:
        """Brightness, colour, contrast and sharpness as one blend with black, luminance, mean or smoothed image."""
        bases = {
            "colour": luminance(x),
            "contrast": mean(luminance(x), axis=(1, 2, 3), keepdims=True),
            "sharpness": _smooth(x),
        }
        base, factor = x * 0.0, 1.0 + self._amount("brightness", ranges.enhance)
        for name, other in bases.items():
            base = where(self._image_mask(name), other, base)
            factor = factor + self._amount(name, ranges.enhance)
        sampled = per_image(factor, x)
        return where(sampled == 1.0, x, clip(blend(base, x, sampled), 0.0, 1.0))


def _posterize(x: Tensor, step: Tensor) -> Tensor:
    """Clear the lowest bits of 8-bit pixels; step is 2 ** bits."""
    return floor(floor(x * 255.0 + 0.5) / step) * step * (1.0 / 255.0)


def _autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to [0, 1]; constant channels are unchanged."""
    low, high = (f(x, axis=(2, 3), keepdims=True) for f in (reduce_min, reduce_max))
    return where(high > low, (x - low) / where(high > low, high - low, 1.0), x)


def _smooth(x: Tensor) -> Tensor:
    """A weighted 3 x 3 mean with weight 5 at the centre; the outermost pixels are unchanged."""
    h, w = x.shape[2:]
    if min(h, w) < 3:
        return x
    rows = cut(x, 2, 0, h - 2) + cut(x, 2, 1, h - 1) + cut(x, 2, 2, h)
    around = cut(rows, 3, 0, w - 2) + cut(rows, 3, 1, w - 1) + cut(rows, 3, 2, w)
    middle = cut(cut(x, 2, 1, h - 1), 3, 1, w - 1)
    return x + pad((around - middle * 9.0) * (1.0 / 13.0), ((0, 0), (0, 0), (1, 1), (1, 1)))


class RandAugment(AugmentationPolicy):
    """Apply `count` random operations in sequence, all of one strength from 0 to 30 (Cubuk et al. 2020).

    The operations are those of the paper except equalize. Pixels must lie in [0, 1].
    """

    def __init__(self, count: int = 2, strength: float = 9.0, mode: str = "constant", fill: float = 0.0) -> None:
        super().__init__(count, mode, fill)
        if not 0.0 <= strength <= 30.0:
            raise UserError("RandAugment", f"a strength from 0 to 30 is required, got {strength}.")
        self.strength = float(strength)

    def ranges(self, size: tuple[int, int]) -> MagnitudeRanges:
        return MagnitudeRanges(
            shear=0.3, translate=(0.45 * size[0], 0.45 * size[1]), degrees=30.0, enhance=0.9, bits=4.0
        )

    def strengths(self, images: int) -> Tensor:
        return full((images,), self.strength / 30.0)


class TrivialAugment(AugmentationPolicy):
    """Apply one random operation of random strength to each image (Müller & Hutter 2021), with the wide ranges.

    The operations are those of the paper except equalize. Pixels must lie in [0, 1].
    """

    def __init__(self, mode: str = "constant", fill: float = 0.0) -> None:
        super().__init__(1, mode, fill)

    def ranges(self, size: tuple[int, int]) -> MagnitudeRanges:
        return MagnitudeRanges(shear=0.99, translate=(32.0, 32.0), degrees=135.0, enhance=0.99, bits=6.0)

    def strengths(self, images: int) -> Tensor:
        return floor(random.uniform((images,)) * 31.0) * (1.0 / 30.0)
