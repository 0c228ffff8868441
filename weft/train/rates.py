"""Learning rate range test (Smith 2017): train a few steps with growing rates and find where the loss falls fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import UserError
from ..ops.convert import asarray
from ..random import default_generator
from ..records import dataclass
from ..tensor import Tensor
from .batches import arrays
from .state import Training
from .steps import Steps

SMOOTH = 0.9  # decay of the moving average of the loss
FAR = 4.0  # times the lowest loss: training has diverged


@dataclass(frozen=True)
class Rates:
    """The learning rates tried, the smoothed loss at each, and the suggested one."""

    rates: list[float]
    losses: list[float]
    best: float


def growing(low: float, high: float, steps: int) -> Callable[[Tensor], Tensor]:
    """A schedule from low to high, by the same factor at each step."""
    if not (0.0 < low < high and math.isfinite(high)) or steps < 10:
        raise UserError("find_rate", f"0 < low < high and 10 steps or more are required, got {low}, {high}, {steps}.")
    factor = math.log(high / low) / (steps - 1)
    return lambda done: low * (done.astype("float32") * factor).exp()


def sweep(training: Training, steps: Steps, batches: Any, rate_of: Callable[[Tensor], Tensor], count: int) -> Rates:
    """Train `count` steps and restore everything."""
    rates, losses, mean = [], [], 0.0
    with unchanged(training):
        for number, (x, y) in zip(range(count), _endless(batches), strict=False):
            value = float(steps.step(x, y).item())
            mean = SMOOTH * mean + (1.0 - SMOOTH) * value
            losses.append(mean / (1.0 - SMOOTH ** (number + 1)))
            rates.append(float(rate_of(asarray(float(number))).item()))
            if not math.isfinite(losses[-1]) or losses[-1] > FAR * min(losses):
                break
    return Rates(rates, losses, steepest(rates, losses))


def steepest(rates: list[float], losses: list[float]) -> float:
    """The learning rate where the loss falls fastest over log(rate), or a tenth of that with the lowest loss, if that is less."""
    good = np.array([v for v in losses if math.isfinite(v)])
    if len(good) < 10:
        raise UserError(
            "find_rate",
            "the loss diverges within ten steps even at the lowest rates. Use a lower `low`, or check the data.",
        )
    lowest = int(good.argmin())
    slopes = np.gradient(good[: max(lowest, 2) + 1])
    return min(rates[int(slopes.argmin())], rates[lowest] / 10.0)


def _endless(batches: Any) -> Iterator[Any]:
    while True:
        yield from arrays(batches)


@contextmanager
def unchanged(training: Training) -> Iterator[None]:
    """Restore tensors, random streams and the position in the data afterwards."""
    tensors = training.tensors()
    values = {name: np.array(t.numpy()) for name, t in tensors.items()}
    stream, place = default_generator.state, training.loader.state()
    kept = tuple(np.array(t.numpy()) for t in stream)
    try:
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.assign(asarray(values[name]).astype(tensor.dtype))
        default_generator.state = (asarray(kept[0]), asarray(kept[1]))
        training.loader.load(place)
