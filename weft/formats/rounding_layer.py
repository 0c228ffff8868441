"""Rounding inside a network: modules that round tensors to a format, in the compiled program.

with rounded(model, "float8_e4m3", scales, activations=True):
    model(x)                    # weights, the input and the result of every layer are numbers of the format
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..compress.parametrize import Parametrization
from ..compress.taps import tap, untap
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.elementwise import abs as absolute
from ..ops.elementwise import floor, log2, round, where
from ..ops.indexing import take
from ..ops.math import clip
from ..saved.program import Program
from ..tensor import Tensor
from .number_format import FixedFormat, FloatFormat, NumberFormat, number_format
from .rounding import round_to

DTYPES = ("float16", "bfloat16")  # formats that are dtypes of weft
INPUT = "input"


class RoundTo(Module):
    """y = the nearest number of a format times `scale`; ties to even, overflow as in `round_to`. Tuples are rounded one by one.

    >>> RoundTo("q3.4")(asarray([0.3, 100.0])).tolist()
    [0.3125, 7.9375]
    """

    def __init__(self, format: str | NumberFormat, scale: float = 1.0) -> None:
        self.format, self.scale = number_format(format), scale
        if isinstance(self.format, FloatFormat):
            self.quanta = asarray(_quanta(self.format)).realize()

    def forward(self, x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(self.forward, x))
        if not isinstance(x, Tensor) or not x.dtype.is_float:
            return x  # indices and the like
        if isinstance(self.format, FixedFormat):
            step = self.format.step * self.scale
            steps = where(x == x, round(x / step), 0.0)  # nan is 0 in integers
            return clip(steps, float(self.format.low_code), float(self.format.high_code)) * step
        if self.format.name in DTYPES:
            return x.astype(self.format.name).astype(x.dtype)
        return x if self.format.name in ("float64", "float32") else self._rounded(x)

    def _rounded(self, x: Tensor) -> Tensor:
        """Any other float. log2 of a number just beside a power of two may be wrong by one: it is rounded to the power in either case."""
        assert isinstance(self.format, FloatFormat)
        size = absolute(x)
        exponents = floor(log2(where(size > 0, size, 1.0)))
        first = float(self.format.least_exponent)
        row = clip(exponents - first, 0.0, float(len(_quanta(self.format)) - 1)).astype("int32")
        quantum = take(self.quanta, row.reshape((-1,))).reshape(x.shape)
        y = round(x / quantum) * quantum
        beyond = float("inf") if self.format.has_infinity else float("nan")
        return where(absolute(y) > self.format.largest, where(x < 0, -beyond, beyond), where(size > 0, y, x))


def _quanta(format: FloatFormat) -> np.ndarray:
    """The distance of neighbours by exponent, from the least one."""
    exponents = np.arange(format.least_exponent, format.largest_exponent + 1) - format.fraction_bits
    return np.ldexp(1.0, exponents).astype(np.float32)


def scale_for(largest: float, format: NumberFormat) -> float:
    """The scale of a tensor whose largest absolute value is given: integers need one, so that it is their largest; others have none.

    >>> scale_for(254.0, number_format("int8"))
    2.0
    """
    if isinstance(format, FixedFormat) and format.is_integer and np.isfinite(largest) and largest > 0:
        return float(largest / format.high_code)
    return 1.0


def rounded_array(array: np.ndarray, format: NumberFormat, scale: float) -> np.ndarray:
    """An array in a format with a scale."""
    return np.asarray(round_to(array.astype(np.float64) / scale, format) * scale)


@contextmanager
def rounded(
    model: Module, format: str | NumberFormat, largest: Mapping[str, float], *, activations: bool
) -> Iterator[None]:
    """Inside, the parameters of a network are rounded, with `activations` also its input and the results of all its layers.

    `largest` are the largest absolute values that were seen, for the scales of integers: of the results of layers by path, and of INPUT.
    Layers that are not in it are left alone. Parameters with fewer than two axes, biases above all, stay as they are with integer
    formats: hardware adds them to wide accumulators.
    """
    found = number_format(format)
    tensors = parameters_of(model)
    kept = {name: tensor.numpy() for name, tensor in tensors.items()}
    modules = {path: module for path, module in model.named_modules().items() if activations and path in largest}
    # The graph of a program is fixed, and what a parametrization computes is a weight.
    modules = {path: one for path, one in modules.items() if not isinstance(one, Program | Parametrization)}
    try:
        for name, value in kept.items():
            if is_rounded(value, found):
                scale = scale_for(float(np.abs(value).max(initial=0.0)), found)
                tensors[name].assign(rounded_array(value, found, scale).astype(value.dtype))
        for path, module in modules.items():
            tap(module, after=RoundTo(found, scale_for(largest[path], found)))
        if modules and INPUT in largest:
            tap(model, before=RoundTo(found, scale_for(largest[INPUT], found)))
        yield
    finally:
        for module in (*modules.values(), model):
            untap(module)
        for name, value in kept.items():
            tensors[name].assign(value)


def parameters_of(model: Module) -> dict[str, Tensor]:
    """The parameters of a network that are floats, frozen ones too."""
    state = model.named_state()
    return {p: t for p, t in model.named_tensors().items() if p not in state and t.dtype.is_float}


def is_rounded(value: np.ndarray, format: NumberFormat) -> bool:
    """Whether a parameter is rounded in a format."""
    return value.ndim >= 2 or not format.is_integer
