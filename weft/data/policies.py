"""Augmentations that choose among many: RandAugment and TrivialAugment.

Each picture draws its own operations. Computing all of them for all pictures and picking one would cost all of them;
here an operation is a set of numbers of two steps that every picture takes, and an operation that is not drawn has the
numbers that do nothing: one warp (shear, move, turn) for all rounds together, then in each round one change of colours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .. import random
from ..dtypes import float32
from ..errors import UserError
from ..nn import settings as nn_settings
from ..nn.module import Module
from ..ops.creation import full
from ..ops.elementwise import floor, where
from ..ops.math import clip
from ..ops.movement import cut, pad, reshape
from ..ops.reduce import max as greatest
from ..ops.reduce import min as least
from ..ops.statistics import mean
from ..tensor import ArrayLike, Tensor
from . import settings
from .colour import blended, grey, per_picture
from .geometry import affine
from .warp import View, checked_border, view

OPERATIONS = (
    "identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate",
    "brightness", "colour", "contrast", "sharpness", "posterize", "solarize", "autocontrast",
)  # fmt: skip


@dataclass(frozen=True)
class Ranges:
    """How far each kind of operation goes at full strength."""

    shear: float  # the slope
    translate: tuple[float, float]  # in pixels, down and to the right
    degrees: float
    enhance: float  # brightness, colour, contrast and sharpness: factors from 1 - this to 1 + this
    bits: float  # how many of the 8 bits of a pixel posterize takes away


class Policy(Module):
    """What draws operations for each picture: `count` rounds of one operation each."""

    def __init__(self, count: int, mode: str, fill: float) -> None:
        layer = type(self).__name__
        self.count = nn_settings.count(layer, "operations", count)
        self.mode, self.fill = checked_border(layer, mode), float(fill)

    def ranges(self, size: tuple[int, int]) -> Ranges:
        """How far operations go in pictures of this size."""
        raise UserError(type(self).__name__, "a policy needs a method ranges(self, size).")

    def strengths(self, pictures: int) -> Tensor:
        """How strongly each picture is changed, from 0 to 1."""
        raise UserError(type(self).__name__, "a policy needs a method strengths(self, pictures).")

    def forward(self, x: ArrayLike | View) -> Tensor:
        layer = type(self).__name__
        v = x if isinstance(x, View) else view(settings.coloured(layer, x))
        settings.coloured(layer, v.pictures)
        if not self.training:
            return v.seen()
        rounds = [self._drawn(len(v.pictures)) for _ in range(self.count)]
        ranges = self.ranges(v.size)
        v = v.beyond(self.mode, self.fill)
        for drawn in rounds:
            v = drawn.moved(v, ranges)
        result = v.seen()
        for drawn in rounds:
            result = drawn.coloured(result, ranges)
        return result

    def _drawn(self, pictures: int) -> _Drawn:
        chosen = random.integers(0, len(OPERATIONS), (pictures,))
        sign = where(random.bernoulli(0.5, (pictures,)), -1.0, 1.0)
        return _Drawn(chosen, sign, self.strengths(pictures).astype(float32))


@dataclass(frozen=True)
class _Drawn:
    """The operation of each picture, its sign and its strength."""

    chosen: Tensor
    sign: Tensor
    strength: Tensor

    def _is(self, name: str) -> Tensor:
        return self.chosen == OPERATIONS.index(name)

    def _amount(self, name: str, most: float) -> Tensor:
        """How far an operation goes in the pictures that drew it, 0 in the others."""
        return where(self._is(name), self.sign * self.strength * most, 0.0)

    def moved(self, v: View, ranges: Ranges) -> View:
        angle = self._amount("rotate", math.radians(ranges.degrees))
        down, right = (self._amount(f"translate_{a}", n) for a, n in zip("yx", ranges.translate, strict=True))
        slope, rise = (self._amount(f"shear_{a}", ranges.shear) for a in "xy")
        return affine(v, angle, slope, 1.0, down, right, rise)

    def coloured(self, x: Tensor, ranges: Ranges) -> Tensor:
        x = self._enhanced(x, ranges)
        threshold = where(self._is("solarize"), (1.0 - self.strength) * (256.0 / 255.0), 2.0)
        x = where(x >= per_picture(threshold, x), 1.0 - x, x)
        step = 2.0 ** floor(self.strength * ranges.bits + 0.5)
        x = where(self._pictures("posterize"), _posterized(x, per_picture(step, x)), x)
        return where(self._pictures("autocontrast"), _stretched(x), x)

    def _pictures(self, name: str) -> Tensor:
        """Which pictures drew an operation, spread over their pixels."""
        return reshape(self._is(name), (-1, 1, 1, 1))

    def _enhanced(self, x: Tensor, ranges: Ranges) -> Tensor:
        """Away from, or towards, black, grey, the mean or the smoothed picture: one blend, with the base drawn."""
        bases = {"colour": grey(x), "contrast": mean(grey(x), axis=(1, 2, 3), keepdims=True), "sharpness": _smoothed(x)}
        base, factor = x * 0.0, 1.0 + self._amount("brightness", ranges.enhance)
        for name, other in bases.items():
            base = where(self._pictures(name), other, base)
            factor = factor + self._amount(name, ranges.enhance)
        drawn = per_picture(factor, x)
        return where(drawn == 1.0, x, clip(blended(base, x, drawn), 0.0, 1.0))


def _posterized(x: Tensor, step: Tensor) -> Tensor:
    """Bytes without their lowest bits; step is 2 to their number."""
    return floor(floor(x * 255.0 + 0.5) / step) * step * (1.0 / 255.0)


def _stretched(x: Tensor) -> Tensor:
    """Each channel from 0 to 1; one that is flat stays."""
    low, high = (f(x, axis=(2, 3), keepdims=True) for f in (least, greatest))
    return where(high > low, (x - low) / where(high > low, high - low, 1.0), x)


def _smoothed(x: Tensor) -> Tensor:
    """The mean of the 3 x 3 pixels around each, the middle counting five times; the outermost pixels stay."""
    h, w = x.shape[2:]
    if min(h, w) < 3:
        return x
    rows = cut(x, 2, 0, h - 2) + cut(x, 2, 1, h - 1) + cut(x, 2, 2, h)
    around = cut(rows, 3, 0, w - 2) + cut(rows, 3, 1, w - 1) + cut(rows, 3, 2, w)
    middle = cut(cut(x, 2, 1, h - 1), 3, 1, w - 1)
    return x + pad((around - middle * 9.0) * (1.0 / 13.0), ((0, 0), (0, 0), (1, 1), (1, 1)))


class RandAugment(Policy):
    """`count` random operations one after another, all of one strength from 0 to 30 (Cubuk et al. 2020).

    The operations are those of the paper but equalize. Pixels lie in [0, 1].
    """

    def __init__(self, count: int = 2, strength: float = 9.0, mode: str = "constant", fill: float = 0.0) -> None:
        super().__init__(count, mode, fill)
        if not 0.0 <= strength <= 30.0:
            raise UserError("RandAugment", f"a strength from 0 to 30 is required, got {strength}.")
        self.strength = float(strength)

    def ranges(self, size: tuple[int, int]) -> Ranges:
        return Ranges(shear=0.3, translate=(0.45 * size[0], 0.45 * size[1]), degrees=30.0, enhance=0.9, bits=4.0)

    def strengths(self, pictures: int) -> Tensor:
        return full((pictures,), self.strength / 30.0)


class TrivialAugment(Policy):
    """One random operation of a random strength for each picture (Müller & Hutter 2021), in its wide ranges.

    The operations are those of the paper but equalize. Pixels lie in [0, 1].
    """

    def __init__(self, mode: str = "constant", fill: float = 0.0) -> None:
        super().__init__(1, mode, fill)

    def ranges(self, size: tuple[int, int]) -> Ranges:
        return Ranges(shear=0.99, translate=(32.0, 32.0), degrees=135.0, enhance=0.99, bits=6.0)

    def strengths(self, pictures: int) -> Tensor:
        return floor(random.uniform((pictures,)) * 31.0) * (1.0 / 30.0)
