"""Dropout and noise layers. In evaluation mode all are the identity."""

from __future__ import annotations

import math
from typing import ClassVar

from .. import random
from ..errors import UserError
from ..ops.elementwise import where
from ..tensor import ArrayLike, Tensor, as_tensor
from . import checks
from .module import Module


class Dropout(Module):
    """y = x * keep / (1 - rate), each element kept with probability 1 - rate (Srivastava et al. 2014)"""

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.check_rate("Dropout", rate)

    def forward(self, x: ArrayLike) -> Tensor:
        return random.dropout(x, self.rate, training=self.training)


class _ChannelDropout(Module):
    """Base class of layers that drop whole channels."""

    rank: ClassVar[int]

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.check_rate(type(self).__name__, rate)

    def forward(self, x: ArrayLike) -> Tensor:
        x = checks.check_spatial(type(self).__name__, x, self.rank)
        return _dropout(x, self.rate, self.training, 2)


def _dropout(x: Tensor, rate: float, training: bool, axes: int) -> Tensor:
    """Dropout with one decision for all elements with the same indices along the first `axes` axes."""
    if not training or rate == 0.0:
        return x
    keep = random.bernoulli(1.0 - rate, (*x.shape[:axes], *[1] * (x.ndim - axes)))
    return where(keep, x * (1.0 / (1.0 - rate)), 0.0)


class Dropout1d(_ChannelDropout):
    """Dropout of whole channels of (batch, channels, length) (Tompson et al. 2015)."""

    rank = 1


class Dropout2d(_ChannelDropout):
    """Dropout of whole channels of (batch, channels, height, width) (Tompson et al. 2015)."""

    rank = 2


class Dropout3d(_ChannelDropout):
    """Dropout of whole channels of (batch, channels, depth, height, width) (Tompson et al. 2015)."""

    rank = 3


class DropPath(Module):
    """y = x * keep / (1 - rate), with one decision per example: a residual branch is dropped (stochastic depth, Huang et al. 2016)"""

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = checks.check_rate("DropPath", rate)

    def forward(self, x: ArrayLike) -> Tensor:
        return _dropout(as_tensor(x), self.rate, self.training, 1)


class AlphaDropout(Module):
    """y = a * (x if kept else -s * alpha) + b, where a and b preserve mean 0 and variance 1 (Klambauer et al. 2017)

    s and alpha are those of SELU, which it follows.
    """

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.check_rate("AlphaDropout", rate)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if not self.training or self.rate == 0.0:
            return x
        lowest = -1.0507009873554805 * 1.6732632423543772
        a = 1.0 / math.sqrt((1.0 - self.rate) * (1.0 + self.rate * lowest**2))
        keep = random.bernoulli(1.0 - self.rate, x.shape)
        return where(keep, x * a, a * lowest) - a * lowest * self.rate


class GaussianDropout(Module):
    """y = x * n, n normal with mean 1 and variance rate / (1 - rate) (Srivastava et al. 2014)"""

    def __init__(self, rate: float = 0.5) -> None:
        self.rate = checks.check_rate("GaussianDropout", rate)

    def forward(self, x: ArrayLike) -> Tensor:
        x = _floats("GaussianDropout", x)
        if not self.training or self.rate == 0.0:
            return x
        return x * random.normal(x.shape, 1.0, math.sqrt(self.rate / (1.0 - self.rate)), dtype=x.dtype)


class GaussianNoise(Module):
    """y = x + n, n normal with mean 0 and this standard deviation"""

    def __init__(self, std: float) -> None:
        self.std = checks.check_at_least("GaussianNoise", "standard deviation", std)

    def forward(self, x: ArrayLike) -> Tensor:
        x = _floats("GaussianNoise", x)
        if not self.training or self.std == 0.0:
            return x
        return x + random.normal(x.shape, 0.0, self.std, dtype=x.dtype)


def _floats(layer: str, x: ArrayLike) -> Tensor:
    x = as_tensor(x)
    if not x.dtype.is_float:
        raise UserError(layer, f"a floating dtype is required, got {x.dtype.name}.")
    return x
