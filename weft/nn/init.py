"""Parameter initialization: functions from a shape to values, also available by name.

A weight is (outputs, inputs, kernel...). Each output is a sum of fan_in = inputs * kernel terms, each input contributes to
fan_out = outputs * kernel of them, and the variance is chosen so that signals neither explode nor vanish through many layers:
forward signals by fan_in, backward signals by fan_out, or a compromise of both.

    nn.Linear(784, 300, init="he_normal")
    nn.Linear(784, 300, init=nn.init.normal(std=0.01))
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from .. import random
from ..errors import UserError
from ..knobs import knobs
from ..ops.creation import full
from ..records import dataclass

Shape = tuple[int, ...]
Maker = Callable[[Shape], Any]
Fan = Literal["in", "out", "both"]
Law = Literal["normal", "truncated_normal", "uniform"]


@dataclass(frozen=True)
class Initializer:
    """A function from a shape to values that knows how it is written.

    >>> normal(std=0.02).text
    'normal(0.02)'
    """

    text: str
    make: Maker

    def __call__(self, shape: Shape) -> Any:
        return self.make(shape)


def constant(value: float) -> Initializer:
    """The same number everywhere."""
    return Initializer(f"constant({value:g})", lambda shape: full(shape, float(value)))


def uniform(low: float = -0.05, high: float = 0.05) -> Maker:
    """Uniform between two numbers."""
    return lambda shape: _sample("uniform", shape) * np.float32(high - low) + np.float32(low)


def normal(mean: float = 0.0, std: float = 0.05) -> Initializer:
    """The normal distribution."""
    text = f"normal({std:g})" if mean == 0 else f"normal({mean:g}, {std:g})"
    return Initializer(text, lambda shape: _sample("normal", shape) * np.float32(std) + np.float32(mean))


def truncated_normal(std: float = 0.05) -> Initializer:
    """The normal distribution truncated at two standard deviations."""
    return Initializer(f"truncated_normal({std:g})", lambda shape: _sample("truncated_normal", shape) * np.float32(std))


_CHUNK, _SMALL = 1 << 18, 1 << 14


def _sample(law: Law, shape: Shape) -> np.ndarray:
    """Samples of the unscaled distribution.

    Large shapes are sampled in chunks of one size, so that one compiled program serves all parameters of a network. Small ones take a few
    milliseconds without compiling, and would need a program for each shape.
    """
    draw, count = getattr(random, law), math.prod(shape)
    if count <= _SMALL:
        with knobs.set(compile_after=sys.maxsize):
            values: np.ndarray = draw(shape).numpy()
        return values
    chunks = [draw(_CHUNK).numpy() for _ in range(-(-count // _CHUNK))]
    return np.concatenate(chunks)[:count].reshape(shape)


def variance_scaling(scale: float = 1.0, fan: Fan = "in", law: Law = "truncated_normal") -> Maker:
    """Variance scale / fan: the base of the named initializers below (He et al. 2015, Glorot and Bengio 2010, LeCun et al. 1998)."""

    def make(shape: Shape) -> Any:
        inputs, outputs = fans(shape)
        spread = scale / max(1.0, {"in": inputs, "out": outputs, "both": (inputs + outputs) / 2}[fan])
        if law == "uniform":
            limit = math.sqrt(3.0 * spread)
            return uniform(-limit, limit)(shape)
        if law == "normal":
            return normal(std=math.sqrt(spread))(shape)
        return truncated_normal(math.sqrt(spread) / _CUT)(shape)  # truncation reduces the standard deviation

    return make


_CUT = 0.87962566103423978  # the standard deviation of a normal distribution truncated at two


def fans(shape: Shape) -> tuple[int, int]:
    """fan_in and fan_out of a weight."""
    if len(shape) < 2:
        return (shape[0] if shape else 1,) * 2
    kernel = math.prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def orthogonal(gain: float = 1.0) -> Maker:
    """A matrix whose rows (or columns, if there are fewer) are orthogonal with norm `gain` (Saxe et al. 2014)."""

    def make(shape: Shape) -> Any:
        if len(shape) < 2:
            raise UserError("orthogonal", f"a matrix is required, got the shape {shape}.")
        rows, columns = shape[0], math.prod(shape[1:])
        values = _sample("normal", (max(rows, columns), min(rows, columns))).astype(np.float64)
        q, r = np.linalg.qr(values)
        q = q * np.sign(np.diag(r))  # makes the distribution uniform over orthogonal matrices
        return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)

    return make


def identity(gain: float = 1.0) -> Maker:
    """The identity matrix; for a convolution, a filter that returns its input."""

    def make(shape: Shape) -> Any:
        if len(shape) < 2:
            raise UserError("identity", f"a matrix is required, got the shape {shape}.")
        values = np.zeros(shape, np.float32)
        middle = tuple(n // 2 for n in shape[2:])
        for i in range(min(shape[:2])):
            values[(i, i, *middle)] = gain
        return values

    return make


NAMES: dict[str, Maker] = {
    "zeros": constant(0.0),
    "ones": constant(1.0),
    "uniform": uniform(),
    "normal": normal(),
    "truncated_normal": truncated_normal(),
    "glorot_uniform": variance_scaling(1.0, "both", "uniform"),
    "glorot_normal": variance_scaling(1.0, "both", "truncated_normal"),
    "he_uniform": variance_scaling(2.0, "in", "uniform"),
    "he_normal": variance_scaling(2.0, "in", "truncated_normal"),
    "lecun_uniform": variance_scaling(1.0, "in", "uniform"),
    "lecun_normal": variance_scaling(1.0, "in", "truncated_normal"),
    # Uniform in +-1 / sqrt(fan_in): PyTorch's default for linear layers and convolutions.
    "fan_in_uniform": variance_scaling(1.0 / 3.0, "in", "uniform"),
    "orthogonal": orthogonal(),
    "identity": identity(),
}


def values(start: str | float | Maker, shape: Shape) -> Any:
    """Initial values of a shape: by the name of an initializer, a constant, or a function of the shape."""
    if isinstance(start, str):
        if start not in NAMES:
            raise UserError("init", f"there is no initial value {start!r}. Known: {', '.join(NAMES)}.")
        return NAMES[start](shape)
    if isinstance(start, bool | int | float):
        return full(shape, float(start))
    return start(shape)
