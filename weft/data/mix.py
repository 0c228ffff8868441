"""Pictures mixed with others of the batch, and their labels with them: MixUp and CutMix.

Both take (x, y), y class numbers or a distribution for each picture, and give (x, y) with y a distribution. In use
nothing is mixed. The other picture is the one k places further on in the batch, k random: any but itself, and nothing
is sorted.
"""

from __future__ import annotations

import math

import numpy as np

from .. import random
from ..dtypes import float32, int32
from ..errors import UserError
from ..nn import settings as nn_settings
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.creation import iota, one_hot
from ..ops.elementwise import floor, minimum, sqrt, where
from ..ops.indexing import take
from ..ops.math import clip
from ..ops.movement import reshape
from ..tensor import ArrayLike, Tensor, as_tensor
from . import settings
from .colour import inside_box, per_picture

Pair = tuple[Tensor, Tensor]


class Mix(Module):
    """What mixes pictures and labels. `classes` is only needed for labels that are class numbers."""

    def __init__(self, alpha: float, classes: int | None = None) -> None:
        layer = type(self).__name__
        self.alpha = nn_settings.above(layer, "alpha", alpha)
        self.classes = nn_settings.maybe_count(layer, "classes", classes)
        self._quantiles = beta_quantiles(self.alpha)

    def forward(self, x: ArrayLike, y: ArrayLike) -> Pair:
        layer = type(self).__name__
        x, y = settings.pictures(layer, x), self._distribution(layer, as_tensor(y))
        if len(x) != len(y):
            raise UserError(layer, f"a label for each picture is required, got {len(x)} pictures and {len(y)} labels.")
        if not self.training:
            return x, y
        return self.mixed(x, y, drawn_beta(self._quantiles, self.alpha, x), _partners(len(x)))

    def mixed(self, x: Tensor, y: Tensor, keep: Tensor, partner: Tensor) -> Pair:
        """Pictures and labels that keep this part of themselves."""
        raise UserError(type(self).__name__, "a way to mix needs a method mixed(self, x, y, keep, partner).")

    def _distribution(self, layer: str, y: Tensor) -> Tensor:
        if y.dtype.is_integer and y.ndim == 1:
            if self.classes is None:
                raise UserError(layer, f"class numbers need their count: {layer}(alpha, classes=10).")
            return one_hot(y, self.classes)
        if not y.dtype.is_float or y.ndim != 2:
            raise UserError(
                layer,
                f"labels (batch,) of ints or (batch, classes) of floats are required, got {y.dtype.name}{y.shape}.",
            )
        return y


class MixUp(Mix):
    """x = k x + (1 - k) x', y = k y + (1 - k) y', k from Beta(alpha, alpha) for each picture (Zhang et al. 2018)."""

    def __init__(self, alpha: float = 0.2, classes: int | None = None) -> None:
        super().__init__(alpha, classes)

    def mixed(self, x: Tensor, y: Tensor, keep: Tensor, partner: Tensor) -> Pair:
        other, k = take(x, partner, axis=0), per_picture(keep, x)
        return other + (x - other) * k, _mixed_labels(y, partner, keep)


class CutMix(Mix):
    """A box of the picture comes from the other one; y = k y + (1 - k) y', k the part that stayed (Yun et al. 2019).

    The box has sides of sqrt(1 - k) of the picture's, k from Beta(alpha, alpha), around a random pixel; it is cut off
    at the border.
    """

    def __init__(self, alpha: float = 1.0, classes: int | None = None) -> None:
        super().__init__(alpha, classes)

    def mixed(self, x: Tensor, y: Tensor, keep: Tensor, partner: Tensor) -> Pair:
        size, side = (x.shape[2], x.shape[3]), sqrt(1.0 - keep)
        middles = [floor(random.uniform((len(x),)) * float(n)) for n in size]
        halves = [floor(side * float(n)) * 0.5 for n in size]
        starts = [clip(floor(m - h), 0.0, n) for m, h, n in zip(middles, halves, map(float, size), strict=True)]
        ends = [clip(floor(m + h), 0.0, n) for m, h, n in zip(middles, halves, map(float, size), strict=True)]
        extents = [e - s for s, e in zip(starts, ends, strict=True)]
        stayed = 1.0 - extents[0] * extents[1] / float(math.prod(size))
        return where(inside_box(size, starts, extents), take(x, partner, axis=0), x), _mixed_labels(y, partner, stayed)


def _mixed_labels(y: Tensor, partner: Tensor, keep: Tensor) -> Tensor:
    k = reshape(keep, (-1, 1)).astype(y.dtype)
    return y * k + take(y, partner, axis=0) * (1.0 - k)


def _partners(count: int) -> Tensor:
    """For each place of the batch another one: all so many places further on, round the end."""
    if count == 1:
        return iota(1)
    return (iota(count) + random.integers(1, count)) % count


# --- numbers from Beta(alpha, alpha) ---------------------------------------------------------------------------------

_STEPS = 1024


def beta_quantiles(alpha: float) -> np.ndarray:
    """A table of t = x**p, p = min(alpha, 1), at which Beta(alpha, alpha) has reached 0, 1/2 of 1/1024, ... 1/2.

    For alpha < 1 the density of x is infinite at 0, that of t, x**(alpha - p) (1 - x)**(alpha - 1), is smooth up to the
    middle, where the other half begins, its mirror. So straight lines between the entries of the table do.
    """
    power = min(alpha, 1.0)
    t = np.linspace(0.0, 0.5**power, 16 * _STEPS + 1)
    x = t ** (1.0 / power)
    density = (4.0 * x * (1.0 - x)) ** (alpha - power) * (1.0 - x) ** (power - 1.0)  # scaled: nothing vanishes
    reached = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    return np.interp(np.linspace(0.0, 1.0, _STEPS + 1), reached / reached[-1], t)


def drawn_beta(quantiles: np.ndarray, alpha: float, x: Tensor) -> Tensor:
    """A number from Beta(alpha, alpha) for each picture, by the inverse of its distribution."""
    u, table = random.uniform((len(x),)), asarray(quantiles, dtype=float32, device=x.device)
    place = (0.5 - abs(u - 0.5)) * (2.0 * _STEPS)  # how far up the lower half
    below = minimum(place.astype(int32), _STEPS - 1)
    part = place - below.astype(float32)
    t = take(table, below) * (1.0 - part) + take(table, below + 1) * part
    x = t if alpha >= 1.0 else t ** (1.0 / alpha)
    return where(u < 0.5, x, 1.0 - x)
