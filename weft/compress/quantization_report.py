"""The quantization error: range, resolution, overflows and signal-to-noise ratio of each quantized tensor, and the total effect on the network.

print(quantization_report(model, batches))        # batches x or (x, y), which were not used for calibration
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.module import Module, state
from ..ops.convert import asarray
from ..ops.elementwise import maximum, minimum
from ..ops.math import logical_or
from ..ops.reduce import max as reduce_max
from ..ops.reduce import min as reduce_min
from ..ops.reduce import sum
from ..records import dataclass
from ..tensor import ArrayLike, Tensor, as_tensor
from ..tracing.jit import jit
from .fake_quantize import FakeQuantize, QuantizedWeight, in_float, quantizers
from .fixed_point import formats
from .grids import Grid
from .observers import batches_of, evaluating


@dataclass(frozen=True)
class TensorNoise:
    """A quantized tensor: its grid, the range of its values, how many were outside the grid, and its signal-to-quantization-noise ratio in decibels."""

    path: str
    grid: Grid
    low: float
    high: float
    count: int
    overflows: int
    ratio: float

    @property
    def resolution(self) -> float:
        """The largest distance between adjacent values of the grid."""
        return float(np.max(self.grid.scale))


@dataclass(frozen=True)
class QuantizationReport:
    """All quantized tensors of a network, and its results with and without rounding. Accuracies are None without labels."""

    tensors: tuple[TensorNoise, ...]
    ratio: float  # of the results of the network, in decibels
    agreement: float  # the fraction of examples with the same argmax
    accuracy: float | None
    float_accuracy: float | None

    def __str__(self) -> str:
        width = max(len(one.path) for one in self.tensors)
        lines = [f"{'tensor':{width}}  {'range':>20}  {'resolution':>10}  {'overflows':>18}  {'SQNR dB':>7}  grid"]
        for one in self.tensors:
            overflows = f"{one.overflows:,} of {one.count:,}"
            span = f"{one.low:.4g} to {one.high:.4g}"
            lines.append(f"{one.path:{width}}  {span:>20}  {one.resolution:>10.3g}  {overflows:>18}  {one.ratio:>7.1f}  {one.grid}")  # fmt: skip
        lines.append(
            f"results: SQNR {self.ratio:.1f} dB, the same prediction for {100 * self.agreement:.2f} % of the examples"
        )
        if self.accuracy is not None and self.float_accuracy is not None:
            change = 100 * (self.accuracy - self.float_accuracy)
            lines.append(f"accuracy: {100 * self.float_accuracy:.2f} % in float, {100 * self.accuracy:.2f} % quantized ({change:+.2f} points)")  # fmt: skip
        return "\n".join(lines)


def quantization_report(model: Module, batches: Any, *, prepare: Module | None = None) -> QuantizationReport:
    """Measure a quantized network on batches x or (x, y)."""
    given = [batches] if isinstance(batches, np.ndarray | Tensor) else list(batches)
    labels = [np.asarray(one[1]) for one in given if isinstance(one, tuple | list) and len(one) > 1]
    inputs = batches_of("quantization_report", given, prepare)
    if next(quantizers(model), None) is None:
        raise UserError("quantization_report", "a quantized network is required. Call int8 or fixed_point first.")
    with in_float(model):
        exact = _results(model, inputs)
    rounded, meters = _measured(model, inputs)
    same = exact.argmax(-1) == rounded.argmax(-1)
    truth = np.concatenate(labels) if labels else None
    scores = [None if truth is None else float((found.argmax(-1) == truth).mean()) for found in (rounded, exact)]
    tensors = tuple(_noise(path, meter) for path, meter in meters.items())
    return QuantizationReport(tensors, decibels((exact**2).sum(), ((exact - rounded) ** 2).sum()), float(same.mean()), *scores)  # fmt: skip


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise), infinite without noise.

    >>> decibels(100.0, 1.0)
    20.0
    """
    if noise == 0:
        return math.inf
    return 10.0 * math.log10(signal / noise) if signal > 0 else -math.inf


class NoiseMeter(Module):
    """Rounds as a quantizer does, and accumulates the power of values and errors, and overflows."""

    def __init__(self, quantizer: FakeQuantize) -> None:
        self.quantizer = quantizer
        self.signal, self.noise = state(()), state(())
        self.low, self.high = state((), float("inf")), state((), float("-inf"))
        self.count, self.overflows = (asarray(np.int64(0)).realize() for _ in range(2))

    def forward(self, x: ArrayLike) -> Tensor:
        y: Tensor = self.quantizer(x)
        wide = as_tensor(x).detach()
        self.signal.assign(self.signal + sum(wide * wide))
        self.noise.assign(self.noise + sum((wide - y.detach()) ** 2))
        self.low.assign(minimum(self.low, reduce_min(wide)))
        self.high.assign(maximum(self.high, reduce_max(wide)))
        low, high = self.quantizer.ends(wide.ndim)
        beyond = logical_or(wide < low, wide > high)
        self.overflows.assign(self.overflows + sum(beyond.astype("int64")))
        self.count.assign(self.count + wide.size)
        return y


def _measured(model: Module, inputs: list[Any]) -> tuple[np.ndarray, Mapping[str, NoiseMeter]]:
    """The results of a quantized network, and the meters of its quantizers."""
    found = list(quantizers(model))
    meters = {path: NoiseMeter(quantizer) for path, (_, _, quantizer) in zip(formats(model), found, strict=True)}
    try:
        for meter, (module, name, _) in zip(meters.values(), found, strict=True):
            if isinstance(module, QuantizedWeight):  # a layer may read it several times: measured here, once
                meter(module.full())
            else:
                setattr(module, name, meter)
        results = _results(model, inputs)
    finally:
        for module, name, quantizer in found:
            setattr(module, name, quantizer)
    return results, meters


def _noise(path: str, meter: NoiseMeter) -> TensorNoise:
    return TensorNoise(
        path, meter.quantizer.grid, meter.low.item(), meter.high.item(), int(meter.count.item()), int(meter.overflows.item()),
        decibels(meter.signal.item(), meter.noise.item()),
    )  # fmt: skip


def _results(model: Module, inputs: list[Any]) -> np.ndarray:
    with evaluating(model):
        forward = jit(lambda x: model(x))
        return np.concatenate([forward(one).numpy().astype(np.float64) for one in inputs])
