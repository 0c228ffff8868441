"""Mixed precision: the layers most sensitive to quantization stay in float.

A few layers usually cause most of the error of int8: early ones, depthwise ones, and those that add to a residual stream. This is measured: each layer
alone is quantized, and the change of the network's result is its noise. Layers are then kept in float in descending order of noise per added time,
until the allowed fraction is reached. The time that float adds grows with the multiplications of a layer, and with the elements of its input and its weight,
which are four times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.summary import LayerCost, summary
from ..ops.conv import per_axis
from ..ops.convert import asarray
from ..records import dataclass
from ..tensor import ArrayLike, Tensor
from ..tracing.jit import jit
from .fake_quantize import FakeQuantize, QuantizedWeight
from .folding import PRODUCTS, groups_of
from .observers import evaluating
from .parametrize import is_parametrized, parametrization_of
from .taps import BEFORE, tapped

LEAST_NOISE = 0.002  # fraction of the noise of all layers that are still int8: those with less stay int8
ELEMENT_COST = 10  # multiplications that take as long as reading an element in float instead of int8
EXAMPLES = 16  # to measure noise on: it is a mean over all values of the result


@dataclass(frozen=True)
class LayerNoise:
    """The noise that quantization of one layer, or of the input of a residual block, adds to the network's result, relative to its variance."""

    path: str
    noise: float
    macs: int  # multiplications per example; 0 for a residual block, whose shortcut only adds
    elements: int = 0  # of its input, for one example, and of its weight

    @property
    def cost(self) -> int:
        """The time that float adds, in multiplications."""
        return self.macs + ELEMENT_COST * self.elements


def noise_by_layer(model: Module, batch: Any) -> list[LayerNoise]:
    """The noise of each quantized layer alone, largest first. The given network is quantized; it is compiled once for all layers."""
    x = asarray(batch)[:EXAMPLES]
    costs = {line.name: line for line in summary(model, x.shape).lines}
    named = _quantized(model)
    with _noise_meter(model, list(named.values()), x) as noise:
        rows = [
            LayerNoise(path, noise(i), *_cost(layer, costs.get(path), x.shape[0]))
            for i, (path, layer) in enumerate(named.items())
        ]
    return sorted(rows, key=lambda row: -row.noise)


def _cost(layer: Any, line: LayerCost | None, examples: int) -> tuple[int, int]:
    """The multiplications of a layer per example, and the elements of its input and its weight."""
    if line is None or not isinstance(layer, PRODUCTS):
        return 0, 0
    outputs, inputs = layer.weight.shape[0], layer.weight.shape[1] * groups_of(layer)
    results = line.nbytes // 4 // examples // outputs  # of each channel
    stride = (
        1 if isinstance(layer, Linear) else prod(per_axis("quantize", "stride", layer.stride, layer.weight.ndim - 2))
    )
    return line.macs // examples, results * stride * inputs + prod(layer.weight.shape)


def _quantized(model: Module) -> dict[str, Module]:
    """The layers and residual blocks with a quantized input, by path."""
    return {p: m for p, m in model.named_modules().items() if isinstance(tapped(m, BEFORE), FakeQuantize)}


@contextmanager
def _noise_meter(model: Module, layers: Sequence[Module], x: Tensor) -> Iterator[Callable[[int], float]]:
    """A function that measures the noise of one of these layers."""
    with _switches(layers) as flags, evaluating(model):
        forward = jit(lambda x: model(x))

        def result(on: int | None) -> np.ndarray:
            flags.assign(asarray(np.arange(len(layers)) == on).astype("float32"))
            found: np.ndarray = forward(x).numpy().astype(np.float64)
            return found

        exact = result(None)
        spread = max(float(((exact - exact.mean(-1, keepdims=True)) ** 2).sum()), 1e-30)
        yield lambda i: float(((result(i) - exact) ** 2).sum()) / spread


def float_layers(rows: Sequence[LayerNoise], share: float) -> list[str]:
    """The layers to keep in float, up to this fraction of the time that float adds in all, in descending order of noise per time.

    >>> rows = [LayerNoise("a", 0.9, 10), LayerNoise("b", 0.5, 1), LayerNoise("c", 0.1, 9), LayerNoise("d", 0.01, 0)]
    >>> float_layers(rows, 0.5)
    ['d', 'b', 'c']
    """
    if not 0.0 <= share <= 1.0:
        raise UserError("quantize", f"a float_share of 0 to 1 is required, got {share}.")
    left, waiting, chosen = share * sum(row.cost for row in rows), list(rows), list[LayerNoise]()
    while True:
        least = LEAST_NOISE * sum(row.noise for row in waiting)
        fitting = [row for row in waiting if row.cost <= left and row.noise >= max(least, 1e-30)]
        if not fitting:
            return [row.path for row in chosen]
        best = max(fitting, key=lambda row: row.noise / row.cost if row.cost else np.inf)
        chosen.append(best)
        waiting.remove(best)
        left -= best.cost


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
