"""Learned rounding: weights of a quantized network move by fractions of a step so that every layer reproduces its float output.

Rounding to nearest does not minimize the error of the output (AdaRound, Nagel et al. 2020; BRECQ, Li et al. 2021). The float network is the teacher, on
examples without labels. The loss is the squared error of the result of each layer, relative to its energy, and the divergence of the predictions. Gradients pass
through the rounding (straight-through estimator), so later layers also compensate for errors of earlier ones. All offsets are in steps of the grids: one
learning rate suits weights of any magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import optim
from ..errors import UserError
from ..nn.module import Module, listening
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..tensor import Tensor
from ..tracing.jit import jit
from .distill import LayerOutputs, soft_cross_entropy
from .fake_quantize import FakeQuantize, QuantizedWeight
from .folding import PRODUCTS
from .masks import Mask
from .observers import evaluating
from .parametrize import Parametrization, is_parametrized, parametrization_of, parametrize, restore
from .taps import BEFORE, tapped

EXAMPLES = 10  # per step


class Shifted(Parametrization):
    """value + offset * unit, where only the offset is trained; pruned weights stay zero."""

    def __init__(self, value: Tensor | Parametrization, unit: np.ndarray) -> None:
        self.value = value
        given = value() if isinstance(value, Parametrization) else value
        self.unit = asarray(unit.astype(np.float32)).realize()
        keep = value.mask.numpy() if isinstance(value, Mask) else np.ones(given.shape, np.bool_)
        self.keep = asarray(keep.astype(np.float32)).realize()
        self.offset = as_parameter(asarray(np.zeros(given.shape, np.float32)))

    def forward(self) -> Tensor:
        given = self.value() if isinstance(self.value, Parametrization) else self.value
        return given.detach() + self.offset * self.unit * self.keep


def learn_rounding(
    model: Module, teacher: Module, batches: list[Any], *, steps: int = 100, rate: float = 1e-3
) -> list[float]:
    """Train the rounding of a quantized network against the network in float, whose layers have the same paths; returns the loss of each step.

    `batches` are inputs of the networks; `rate` is the initial learning rate, in steps of the grids.
    """
    if steps < 1 or not rate > 0:
        raise UserError("learn_rounding", f"1 or more steps and a rate above 0 are required, got {steps} and {rate}.")
    layers = _learnable(model)
    offsets = [offset for layer in layers.values() for offset in _shift(layer)]
    try:
        with evaluating(model), evaluating(teacher):
            step = _step(model, teacher, layers, optim.adam(offsets, optim.schedules.cosine(rate, steps)))
            examples = np.concatenate([np.asarray(asarray(one).numpy()) for one in batches])
            return [float(step(one).item()) for one in _shuffled(examples, steps)]
    finally:
        for layer in layers.values():
            _keep(layer)


def _learnable(model: Module) -> dict[str, Any]:
    """The quantized layers by path whose weights are parameters, pruned or not."""
    found = {}
    for path, layer in model.named_modules().items():
        if isinstance(layer, PRODUCTS) and isinstance(tapped(layer, BEFORE), FakeQuantize):
            weight = parametrization_of(layer, "weight") if is_parametrized(layer, "weight") else None
            if isinstance(weight, QuantizedWeight) and isinstance(weight.original, Tensor | Mask):
                found[path] = layer
    return found


def _shift(layer: Any) -> list[Tensor]:
    """Make the weight and the bias of a layer trainable by offsets; returns the offsets."""
    weight, inputs = parametrization_of(layer, "weight"), tapped(layer, BEFORE)
    assert isinstance(weight, QuantizedWeight)
    assert isinstance(inputs, FakeQuantize)
    scale = np.broadcast_to(weight.quantizer.grid.scale, (layer.weight.shape[0],))
    shifted = Shifted(weight.original, scale.reshape(-1, *[1] * (layer.weight.ndim - 1)))
    weight.original = shifted
    found = [shifted.offset]
    if isinstance(layer.bias, Tensor) and not is_parametrized(layer, "bias"):
        # The unit of a bias is about the effect of rounding the weights: a step times inputs of a sixth of their range.
        typical = float(inputs.grid.scale.max()) * (1 << inputs.bits) / 6 * np.sqrt(np.prod(layer.weight.shape[1:]))
        bias = Shifted(layer.bias, scale * typical)
        parametrize(layer, "bias", bias)
        found.append(bias.offset)
    return found


def _keep(layer: Any) -> None:
    """Add the learned offsets to the parameters."""
    weight = parametrization_of(layer, "weight")
    assert isinstance(weight, QuantizedWeight)
    assert isinstance(weight.original, Shifted)
    shifted = weight.original
    weight.original = shifted.value
    _assign(shifted)
    if is_parametrized(layer, "bias"):
        bias = parametrization_of(layer, "bias")
        if isinstance(bias, Shifted) and isinstance(bias.value, Tensor):
            _assign(bias)
            restore(layer, "bias", bias.value)


def _assign(shifted: Shifted) -> None:
    target = shifted.value.original if isinstance(shifted.value, Mask) else shifted.value
    assert isinstance(target, Tensor)
    moved = target.numpy() + (shifted.offset * shifted.unit * shifted.keep).numpy()
    target.assign(asarray(moved, dtype=target.dtype))


def _step(model: Module, teacher: Module, layers: Mapping[str, Any], optimizer: Any) -> Any:
    others = teacher.named_modules()

    @jit
    def step(x: Tensor) -> Tensor:
        seen, known = LayerOutputs(), LayerOutputs()
        with listening(known):
            answer = teacher(x).detach()
        with listening(seen):
            result = model(x)
        total = soft_cross_entropy(result, answer, 1.0) if result.ndim > 1 else ((result - answer) ** 2).mean()
        for path, layer in layers.items():
            wanted = known.last(others[path]).detach()
            distance = ((seen.last(layer) - wanted) ** 2).sum() / ((wanted**2).sum() + 1e-12)
            total = total + distance / len(layers)
        optimizer.minimize(total)
        return total

    return step


def _shuffled(examples: np.ndarray, steps: int) -> list[np.ndarray]:
    """Batches of examples for `steps` steps, reshuffled in every epoch."""
    rng, size = np.random.default_rng(0), min(EXAMPLES, len(examples))
    order = np.concatenate([rng.permutation(len(examples)) for _ in range(-(-steps * size // len(examples)))])
    return [examples[order[i * size : (i + 1) * size]] for i in range(steps)]
