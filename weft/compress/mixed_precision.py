"""Mixed precision: the layers most sensitive to quantization stay in float.

A few layers usually cause most of the error of int8: early ones, depthwise ones, and those that add to a residual stream. This is measured: each layer
alone is quantized, and the change of the network's result is its noise. Layers are then kept in float in descending order of noise per multiplication,
until the allowed fraction of float multiplications is reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from ..nn.summary import summary
from ..ops.convert import asarray
from ..records import dataclass
from ..tensor import ArrayLike, Tensor
from ..tracing.jit import jit
from .fake_quantize import FakeQuantize, QuantizedWeight
from .observers import evaluating
from .parametrize import is_parametrized, parametrization_of
from .taps import BEFORE, tapped

LEAST_NOISE = 0.002  # fraction of the total noise of all layers: layers with less stay int8
EXAMPLES = 16  # to measure noise on: it is a mean over all values of the result


@dataclass(frozen=True)
class LayerNoise:
    """The noise that quantization of one layer, or of the input of a residual block, adds to the network's result, relative to its variance."""

    path: str
    noise: float
    macs: int  # multiplications per example; 0 for a residual block, whose shortcut only adds


def noise_by_layer(model: Module, batch: Any) -> list[LayerNoise]:
    """The noise of each quantized layer alone, largest first. The given network is quantized; it is compiled once for all layers."""
    x = asarray(batch)[:EXAMPLES]
    costs = {line.name: line.macs for line in summary(model, x.shape).lines}
    named = {p: m for p, m in model.named_modules().items() if isinstance(tapped(m, BEFORE), FakeQuantize)}
    with _switches(list(named.values())) as flags, evaluating(model):
        forward = jit(lambda x: model(x))

        def result(on: int | None) -> np.ndarray:
            flags.assign(asarray(np.arange(len(named)) == on).astype("float32"))
            found: np.ndarray = forward(x).numpy().astype(np.float64)
            return found

        exact = result(None)
        spread = max(float(((exact - exact.mean(-1, keepdims=True)) ** 2).sum()), 1e-30)
        noises = [float(((result(i) - exact) ** 2).sum()) / spread for i in range(len(named))]
    rows = [
        LayerNoise(path, noise, costs.get(path, 0) // x.shape[0] if hasattr(layer, "weight") else 0)
        for (path, layer), noise in zip(named.items(), noises, strict=True)
    ]
    return sorted(rows, key=lambda row: -row.noise)


def float_layers(rows: Sequence[LayerNoise], share: float) -> list[str]:
    """The layers to keep in float, up to this fraction of all multiplications, in descending order of noise per multiplication.

    >>> rows = [LayerNoise("a", 0.9, 10), LayerNoise("b", 0.5, 1), LayerNoise("c", 0.1, 9), LayerNoise("d", 0.01, 0)]
    >>> float_layers(rows, 0.5)
    ['d', 'b', 'c']
    """
    if not 0.0 <= share <= 1.0:
        raise UserError("quantize", f"a float_share of 0 to 1 is required, got {share}.")
    left, total, chosen = share * sum(row.macs for row in rows), sum(row.noise for row in rows), []
    for row in sorted(rows, key=lambda row: -row.noise / row.macs if row.macs else -np.inf):
        if row.macs <= left and row.noise >= LEAST_NOISE * total:
            left -= row.macs
            chosen.append(row.path)
    return chosen


class _Switched(Module):
    """A quantizer that is enabled if its flag is 1."""

    def __init__(self, quantizer: Module, flags: Tensor, place: int) -> None:
        self.quantizer, self._flags, self._place = quantizer, flags, place

    def forward(self, x: ArrayLike) -> Tensor:
        given = asarray(x)
        return given + (asarray(self.quantizer(given)) - given) * self._flags[self._place]


@contextmanager
def _switches(layers: Sequence[Module]) -> Iterator[Tensor]:
    """While active, the quantizers of each layer are enabled if its flag is 1."""
    flags = asarray(np.zeros(len(layers), np.float32)).realize()
    places: list[tuple[Module, str, Module]] = []
    for i, layer in enumerate(layers):
        held = [(layer, BEFORE)]
        if hasattr(layer, "weight") and is_parametrized(layer, "weight"):
            weight = parametrization_of(layer, "weight")
            held += [(weight, "quantizer")] if isinstance(weight, QuantizedWeight) else []
        for module, name in held:
            quantizer = vars(module)[name]
            places.append((module, name, quantizer))
            setattr(module, name, _Switched(quantizer, flags, i))
    try:
        yield flags
    finally:
        for module, name, quantizer in places:
            setattr(module, name, quantizer)
