"""Feature visualisation: images that excite a channel of a layer most, by gradient ascent."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..derivatives import grad
from ..dtypes import float32
from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.elementwise import abs as absolute
from ..ops.elementwise import astype, sqrt
from ..ops.indexing import take_along_axis
from ..ops.math import clip
from ..ops.movement import expand_dims
from ..ops.reduce import sum as sum_over
from ..ops.statistics import mean
from ..tensor import Tensor
from ..tracing.jit import jit
from .recording import evaluating, find_call, recorded
from .statistics import channel_axis

SMOOTHNESS = 0.1  # weight of the total variation: without it, gradients draw noise
BEGIN_SPREAD = 0.1
JITTER_SHARE = 32  # images are shifted by up to this part of their size between steps: what is drawn must not depend on the pixel grid
LIMIT = 3.0  # standard deviations: what normalized images contain


def visualize(
    model: Module,
    shape: tuple[int, int, int],
    layer: str,
    channels: Any,
    steps: int = 128,
    rate: float = 0.1,
    seed: int = 0,
) -> np.ndarray:
    """Inputs of `shape` (channels, height, width), after preprocessing, for which channels of a layer are largest: (n, *shape).

    Adam climbs the mean of each channel, with a penalty on differences of neighbouring pixels; large images are shifted a little between steps.
    """
    numbers = np.atleast_1d(np.asarray(channels))
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not numbers.size:
        raise UserError("visualize", f"the numbers of channels are required, got {channels!r}.")
    generator = np.random.default_rng(seed)
    x = asarray((BEGIN_SPREAD * generator.standard_normal((len(numbers), *shape))).astype(np.float32))
    climb, jitter = _Climb(model, layer, rate), min(shape[1:]) // JITTER_SHARE
    wanted = asarray(numbers.astype(np.int64))
    first, second = (asarray(np.zeros(x.shape, np.float32)) for _ in range(2))
    with evaluating(model):
        for step in range(1, steps + 1):
            x, first, second = climb.step(x, first, second, wanted, asarray(np.float32(step)))
            shift = generator.integers(-jitter, jitter + 1, 2)
            if shift.any():
                x, first, second = (asarray(np.roll(t.numpy(), shift, (2, 3))) for t in (x, first, second))
    return np.asarray(x.numpy())


class _Climb:
    """One step of Adam, compiled."""

    def __init__(self, model: Module, layer: str, rate: float) -> None:
        self.model, self.layer, self.rate = model, layer, rate

    @jit
    def step(
        self, x: Tensor, first: Tensor, second: Tensor, channels: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        slope = grad(self._excitement)(x, channels)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope * slope
        move = (first / (1.0 - 0.9**count)) / (sqrt(second / (1.0 - 0.99**count)) + 1e-8)
        return clip(x + self.rate * move, -LIMIT, LIMIT), first, second

    def _excitement(self, x: Tensor, channels: Tensor) -> Tensor:
        found = find_call("visualize", recorded(self.model, x)[1], self.layer).tensor
        if found is None or found.ndim < 2:
            raise UserError("visualize", f"a layer with channels is required, got {self.layer!r}.")
        axis = channel_axis(found.ndim)
        others = tuple(a for a in range(1, found.ndim) if a != axis)
        means = mean(astype(found, float32), axis=others) if others else astype(found, float32)
        rough = mean(absolute(x[:, :, 1:] - x[:, :, :-1])) + mean(absolute(x[..., 1:] - x[..., :-1]))
        chosen = take_along_axis(means, expand_dims(channels, 1), axis=1)
        return sum_over(chosen) - SMOOTHNESS * float(x.shape[0]) * rough
