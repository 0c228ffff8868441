"""Quantization of weights and activations: the network computes with floats on grids (fake quantization), so it can be evaluated and trained further.

    int8(model, batches)                                        # post-training quantization
    train.fit(model, data, rate=1e-4)                           # quantization-aware training, if that is not enough

The grids are plain data: `quantization(model)` returns those of every layer, for programs that compute with the integers themselves.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..errors import UserError
from ..nn.merge import Residual
from ..nn.module import Module
from ..ops.convert import asarray
from ..records import dataclass
from .equalize import corrected_bias, equalize_activations
from .equalize import equalize as equalize_channels
from .error_feedback import moments, rounded_weight
from .fake_quantize import FakeQuantize, QuantizedWeight, quantize_weight
from .folding import PRODUCTS, can_scale, channel_axis, fold, set_tensor, set_weight
from .grids import Grid, check_bits
from .layers import Weight, layers_of, parameter_of, sharing_layers
from .learned_rounding import learn_rounding
from .masks import Mask
from .mixed_precision import EXAMPLES, float_layers, noise_by_layer
from .observers import Observation, ObservedPlace, batches_of, observe
from .parametrize import is_parametrized, parametrization_of
from .ranges import Kind, Method, Values, best_grid
from .residual_streams import equalize_streams
from .taps import BEFORE, tap, tapped

Scope = Literal["channel", "tensor"]
Equalization = Literal["weights", "activations"]
WeightRounding = Literal["nearest", "feedback", "learned"]


@dataclass(frozen=True)
class LayerQuantization:
    """The grids of a layer: of its input, of its weight, and the integers of the weight."""

    input: Grid
    weight: Grid
    integers: np.ndarray


def int8(model: Module, calibration: Any, **settings: Any) -> dict[str, LayerQuantization]:
    """Quantize weights and activations to 8 bits; see `quantize` for the settings."""
    return quantize(model, calibration, **settings)


def quantize(
    model: Module,
    calibration: Any,
    *,
    bits: int = 8,
    activation_bits: int | None = None,
    method: Method = "mse",
    percent: float = 99.99,
    activations: Kind = "affine",
    activation_scope: Scope = "tensor",
    weights: Kind = "symmetric",
    weight_method: Method = "mse",
    weight_scope: Scope = "channel",
    weight_rounding: WeightRounding = "nearest",
    equalize: bool | Equalization = False,
    correct_bias: bool = False,
    float_share: float = 0.0,
    rounding_steps: int = 100,
    skip: Sequence[str] = (),
    prepare: Module | None = None,
) -> dict[str, LayerQuantization]:
    """Quantize the weights and the inputs of all convolutions and linear layers, in place; returns the grids of each layer by path.

    `calibration` is an array, or batches x or (x, y), as passed to the network; `prepare` is applied to them first, as in training. Batch norms and ReLUs
    are folded into the layers before them. The inputs of residual blocks are quantized too, so that the shortcut reads 8 bits. `skip` names layers that
    stay unchanged; `float_share` keeps the layers with the largest quantization error in float, up to this fraction of the time that float adds (estimated). `weight_rounding`:
    to "nearest", with "feedback" of errors within a layer, or "learned" in `rounding_steps` steps against the network in float, on the calibration data.
    """
    if weight_rounding not in ("nearest", "feedback", "learned"):
        raise UserError(
            "quantize", f"weight_rounding must be 'nearest', 'feedback' or 'learned', got {weight_rounding!r}."
        )
    check_bits("quantize", bits)
    input_bits = check_bits("quantize", bits if activation_bits is None else activation_bits)
    batches = batches_of("quantize", calibration, prepare)
    fold(model, batches[0], activations=not equalize)
    if equalize:
        _equalize(model, batches, equalize)
        fold(model, batches[0])
    _layers(model, skip)
    by = _GridSettings(
        bits, input_bits, method, percent, activations, activation_scope, weights, weight_method, weight_scope
    )
    seen = _calibrate(model, batches, by, skip, weight_rounding)
    teacher = copy.deepcopy(model) if weight_rounding == "learned" else None
    if float_share:
        trial = copy.deepcopy(model)
        # rounded as in the final network: a layer whose errors are compensated by feedback need not stay in float
        _quantize(trial, seen, by, skip, correct_bias)
        skip = (*skip, *float_layers(noise_by_layer(trial, _spread(batches)), float_share))
    _quantize(model, seen, by, skip, correct_bias)
    if teacher is not None:
        learn_rounding(model, teacher, batches, steps=rounding_steps)
    return quantization(model)


def _spread(batches: list[Any]) -> np.ndarray:
    """Some examples of all batches."""
    examples = np.concatenate([asarray(batch).numpy() for batch in batches])
    return examples[:: max(1, len(examples) // EXAMPLES)]


@dataclass(frozen=True)
class _GridSettings:
    """How grids are chosen; see `quantize`."""

    bits: int
    input_bits: int
    method: Method
    percent: float
    activations: Kind
    activation_scope: Scope
    weights: Kind
    weight_method: Method
    weight_scope: Scope


@dataclass(frozen=True)
class _Calibration:
    """Statistics of the inputs of layers and residual blocks in float, by path; `moments` for rounding with feedback."""

    inputs: dict[str, Observation]
    moments: dict[str, np.ndarray]


def _calibrate(
    model: Module, batches: list[Any], by: _GridSettings, skip: Sequence[str], rounding: WeightRounding
) -> _Calibration:
    layers, blocks = _chosen(model, by, skip)
    places = [ObservedPlace(path, layer, BEFORE, channel_axis(layer)) for path, layer in layers.items()]
    places += [ObservedPlace(path, block, BEFORE, 1) for path, block in blocks.items()]
    seen = observe("quantize", model, places, batches, per_channel=by.activation_scope == "channel")
    found = moments(model, layers, batches) if rounding == "feedback" else {}
    return _Calibration({place.path: one for place, one in seen.items()}, found)


def _chosen(model: Module, by: _GridSettings, skip: Sequence[str]) -> tuple[dict[str, Any], dict[str, Residual]]:
    """The layers and the residual blocks to quantize, by path."""
    known = _blocks(model)
    per_channel = _is_channel("activation_scope", by.activation_scope)
    blocks = {} if per_channel else {path: block for path, block in known.items() if path not in skip}
    return _layers(model, [path for path in skip if path not in known]), blocks


def _quantize(model: Module, seen: _Calibration, by: _GridSettings, skip: Sequence[str], correct: bool) -> None:
    """Put the layers of a folded network on their grids."""
    layers, blocks = _chosen(model, by, skip)
    sharing = sharing_layers(model)

    def input_grid(path: str, axis: int | None) -> Grid:
        values = seen.inputs[path].values
        return best_grid("quantize", values, by.input_bits, by.activations, by.method, axis, by.percent)

    for path, block in blocks.items():
        tap(block, before=FakeQuantize(input_grid(path, None)))
    for path, layer in layers.items():
        grid = input_grid(path, channel_axis(layer) if by.activation_scope == "channel" else None)
        wide = 0 if _is_channel("weight_scope", by.weight_scope) else None
        full = layer.weight.numpy()
        chosen = best_grid("quantize", _weights(full, wide, by.weights), by.bits, by.weights, by.weight_method, wide)
        if path in seen.moments and can_scale(layer, sharing):
            set_weight(layer, rounded_weight(full, chosen, seen.moments[path], _kept(layer)))
        weight = parameter_of(model, path, layer)
        _quantize_layer(weight, layer, grid, chosen, seen.inputs[path], full if correct else None)


def _kept(layer: Any) -> np.ndarray | None:
    """The mask of a layer's weight, if it is pruned."""
    made = parametrization_of(layer, "weight") if is_parametrized(layer, "weight") else None
    return made.mask.numpy() if isinstance(made, Mask) else None


def quantization(model: Module) -> dict[str, LayerQuantization]:
    """The grids of all quantized layers of a network, by path."""
    found = {}
    for path, layer in model.named_modules().items():
        inputs = tapped(layer, BEFORE)
        if isinstance(inputs, FakeQuantize) and is_parametrized(layer, "weight"):
            weight = parametrization_of(layer, "weight")
            if isinstance(weight, QuantizedWeight):
                grid = weight.quantizer.grid
                found[path] = LayerQuantization(inputs.grid, grid, grid.quantize(weight.full().numpy()))
    return found


def _layers(model: Module, skip: Sequence[str]) -> dict[str, Any]:
    """The layers to quantize by path."""
    chosen = layers_of("quantize", model, PRODUCTS, skip, "convolutions or linear layers")
    for path, layer in chosen.items():
        if tapped(layer, BEFORE) is not None:
            raise UserError("quantize", f"a network that is not quantized yet is required, but {path or 'it'} is.")
    return chosen


def _equalize(model: Module, batches: list[Any], by: bool | Equalization) -> None:
    if by not in (True, "weights", "activations"):
        raise UserError("quantize", f"equalize must be False, True, 'weights' or 'activations', got {by!r}.")
    if by == "activations":
        equalize_activations(model, batches)
        equalize_streams(model, batches)
    else:
        equalize_channels(model, batches[0])


def _blocks(model: Module) -> dict[str, Residual]:
    """Residual blocks by path; a shortcut with its own weights quantizes its input."""
    named = model.named_modules()
    found = {path: block for path, block in named.items() if isinstance(block, Residual)}
    return {p: b for p, b in found.items() if b.shortcut is None or not _has_products(b.shortcut)}


def _has_products(module: Module) -> bool:
    return any(isinstance(part, PRODUCTS) for part in module.modules())


def _weights(value: np.ndarray, axis: int | None, kind: Kind) -> Values:
    """The values of a weight. Symmetric grids of weights are signed, even where all weights are positive: kernels expect one type."""
    found = Values.exact(value, axis)
    if kind == "affine":
        return found
    most = np.maximum(np.abs(found.low), np.abs(found.high))
    return Values(found.points, found.counts, -most, most, found.width)


def _quantize_layer(
    weight: Weight, layer: Any, inputs: Grid, grid: Grid, seen: Observation, corrected: np.ndarray | None
) -> None:
    """Put a layer on its grids; `corrected`: correct its bias for the change since this weight."""
    tap(layer, before=FakeQuantize(inputs))
    quantize_weight("quantize", weight, grid)
    if corrected is not None:
        set_tensor(layer, "bias", corrected_bias(layer, corrected, layer.weight.numpy(), seen.means))


def _is_channel(name: str, scope: Scope) -> bool:
    if scope not in ("channel", "tensor"):
        raise UserError("quantize", f"{name} must be 'channel' or 'tensor', got {scope!r}.")
    return scope == "channel"
