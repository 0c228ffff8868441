"""MixUp and CutMix: each image and its label are mixed with another image of the batch.

Both take (x, y), where y holds class indices or a distribution per image, and return (x, y) with y a distribution. In
evaluation mode nothing is mixed. The partner of an image is k positions further on in the batch, for one random k: a
rotation of the batch is cheaper than a random permutation and never pairs an image with itself.
"""

from __future__ import annotations

import math

import numpy as np

from .. import random
from ..dtypes import float32, int32
from ..errors import UserError
from ..nn import checks as nn_checks
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.creation import iota, one_hot
from ..ops.elementwise import floor, minimum, sqrt, where
from ..ops.indexing import take
from ..ops.math import clip
from ..ops.movement import reshape
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .colour import inside_box, per_image

Pair = tuple[Tensor, Tensor]


class MixAugmentation(Module):
    """Base class of MixUp and CutMix. `classes` is required only if labels are class indices."""

    def __init__(self, alpha: float, classes: int | None = None) -> None:
        layer = type(self).__name__
        self.alpha = nn_checks.check_above(layer, "alpha", alpha)
        self.classes = nn_checks.check_optional_count(layer, "classes", classes)
        self._quantiles = beta_quantiles(self.alpha)

    def forward(self, x: ArrayLike, y: ArrayLike) -> Pair:
        layer = type(self).__name__
        x, y = checks.check_images(layer, x), self._distribution(layer, as_tensor(y))
        if len(x) != len(y):
            raise UserError(layer, f"a label for each image is required, got {len(x)} images and {len(y)} labels.")
        if not self.training:
            return x, y
        return self.mix(x, y, sample_beta(self._quantiles, self.alpha, x), _partners(len(x)))

    def mix(self, x: Tensor, y: Tensor, keep: Tensor, partner: Tensor) -> Pair:
        """Mix images and labels with those at `partner`; `keep` is the weight of the originals."""
        raise UserError(type(self).__name__, "a subclass needs a method mix(self, x, y, keep, partner).")

    def _distribution(self, layer: str, y: Tensor) -> Tensor:
        if y.dtype.is_integer and y.ndim == 1:
            if self.classes is None:
                raise UserError(layer, f"class indices require the number of classes: {layer}(alpha, classes=10).")
            return one_hot(y, self.classes)
        if not y.dtype.is_float or y.ndim != 2:
            raise UserError(
                layer,
                f"labels (batch,) of ints or (batch, classes) of floats are required, got {y.dtype.name}{y.shape}.",
            )
        return y


class MixUp(MixAugmentation):
    """x = k x + (1 - k) x', y = k y + (1 - k) y', k from Beta(alpha, alpha) for each image (Zhang et al. 2018)."""

    def __init__(self, alpha: float = 0.2, classes: int | None = None) -> None:
        super().__init__(alpha, classes)

    def mix(self, x: Tensor, y: Tensor, keep: Tensor, partner: Tensor) -> Pair:
        other, k = take(x, partner, axis=0), per_image(keep, x)
        return other + (x - other) * k, _mix_labels(y, partner, keep)


class CutMix(MixAugmentation):
    """Paste a box of another image; y = k y + (1 - k) y', k the fraction of the area that is kept (Yun et al. 2019).

    The box is centred on a random pixel, its sides are sqrt(1 - k) times the image's, k from Beta(alpha, alpha), and it
    is clipped at the border.
    """

    def __init__(self, alpha: float = 1.0, classes: int | None = None) -> None:
        super().__init__(alpha, classes)

    def mix(self, x: Tensor, y: Tensor, keep: Tensor, partner: Tensor) -> Pair:
        size, side = (x.shape[2], x.shape[3]), sqrt(1.0 - keep)
        middles = [floor(random.uniform((len(x),)) * float(n)) for n in size]
        halves = [floor(side * float(n)) * 0.5 for n in size]
        starts = [clip(floor(m - h), 0.0, n) for m, h, n in zip(middles, halves, map(float, size), strict=True)]
        ends = [clip(floor(m + h), 0.0, n) for m, h, n in zip(middles, halves, map(float, size), strict=True)]
        extents = [e - s for s, e in zip(starts, ends, strict=True)]
        kept = 1.0 - extents[0] * extents[1] / float(math.prod(size))
        return where(inside_box(size, starts, extents), take(x, partner, axis=0), x), _mix_labels(y, partner, kept)


def _mix_labels(y: Tensor, partner: Tensor, keep: Tensor) -> Tensor:
    k = reshape(keep, (-1, 1)).astype(y.dtype)
    return y * k + take(y, partner, axis=0) * (1.0 - k)


def _partners(count: int) -> Tensor:
    """The index of each image's partner: a rotation of the batch by a random offset."""
    if count == 1:
        return iota(1)
    return (iota(count) + random.integers(1, count)) % count


# --- samples of Beta(alpha, alpha) -----------------------------------------------------------------------------------

_STEPS = 1024


def beta_quantiles(alpha: float) -> np.ndarray:
    """The quantiles 0, 1/2048, 2/2048, ... 1/2 of Beta(alpha, alpha), as a table of t = x**p with p = min(alpha, 1).

    For alpha < 1 the density of x is infinite at 0, while that of t, x**(alpha - p) (1 - x)**(alpha - 1), is smooth up
    to the median. So linear interpolation of the table is accurate; the upper half of the distribution is its mirror.
    """
    power = min(alpha, 1.0)
    t = np.linspace(0.0, 0.5**power, 16 * _STEPS + 1)
    x = t ** (1.0 / power)
    density = (4.0 * x * (1.0 - x)) ** (alpha - power) * (1.0 - x) ** (power - 1.0)  # scaled to avoid underflow
    cumulative = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2.0)])
    return np.interp(np.linspace(0.0, 1.0, _STEPS + 1), cumulative / cumulative[-1], t)


def sample_beta(quantiles: np.ndarray, alpha: float, x: Tensor) -> Tensor:
    """Sample Beta(alpha, alpha) for each image by inverse transform sampling."""
    u, table = random.uniform((len(x),)), asarray(quantiles, dtype=float32, device=x.device)
    position = (0.5 - abs(u - 0.5)) * (2.0 * _STEPS)  # position in the table of the lower half
    lower = minimum(position.astype(int32), _STEPS - 1)
    fraction = position - lower.astype(float32)
    t = take(table, lower) * (1.0 - fraction) + take(table, lower + 1) * fraction
    x = t if alpha >= 1.0 else t ** (1.0 / alpha)
    return where(u < 0.5, x, 1.0 - x)
