"""Cross-layer equalisation and bias correction, for networks whose channels have very different ranges, such as depthwise ones (Nagel et al. 2019).

Equalisation: channel i of a layer is divided by s_i, and the weights of the next layer that read it are multiplied by it. With s_i = sqrt(r1_i / r2_i), the
ranges r1 and r2 of both become sqrt(r1 r2). ReLU commutes with such factors; the 6 of a ReLU6 becomes 6 / s_i, so the function of the network is unchanged.

With per-channel scales, the weights need no equalisation, but activations have one scale for all channels. `equalize_activations` takes s_i from the ranges of
the activations instead: r_i if the next layer is depthwise, whose weights have a scale per channel; else sqrt(r_i / r2_i) (Xiao et al. 2022), a compromise.

Bias correction: rounding shifts the mean of a layer's result by (W_rounded - W) E[x]; that is subtracted from the bias.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..nn.activations import ReLU, ReLU6
from ..nn.linear import Linear
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.elementwise import maximum, minimum
from ..tensor import ArrayLike, Tensor, as_tensor
from .connections import only_readers
from .folding import PRODUCTS, can_scale, channel_axis, groups_of, set_tensor, set_weight
from .layers import sharing_layers
from .observers import ObservedPlace, observe
from .taps import BEFORE

ROUNDS = 20  # a layer is in two pairs, so factors converge after a few rounds
MOST_SPREAD = np.log(100.0)  # rarely used channels are not enlarged to the range of others


class ClippedReLU(Module):
    """y = min(max(x, 0), most), with a `most` for each channel along an axis."""

    def __init__(self, most: ArrayLike, axis: int = 1) -> None:
        self.axis = axis
        self.most = asarray(most).realize()

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        most = self.most if self.axis == -1 else self.most.reshape((-1, *[1] * (x.ndim - 2)))
        return minimum(maximum(x, 0.0), most)


def equalize(model: Module, example: Any) -> dict[str, float]:
    """Equalise the channels of all pairs of consecutive layers; returns the imbalance of each pair's first layer before: its largest channel range over its smallest."""
    paths = {module: path for path, module in model.named_modules().items()}
    pairs = _pairs(model, example)
    spread = {paths[first]: _spread(first) for first, _, _ in pairs}
    for _ in range(ROUNDS):
        if max([float(np.abs(np.log(_equalize(*pair))).max()) for pair in pairs], default=0.0) < 1e-3:
            break
    return spread


def equalize_activations(model: Module, batches: list[Any]) -> None:
    """Equalise the channels of activations between layers, by their ranges on batches."""
    pairs = _pairs(model, batches[0])
    paths = {module: path for path, module in model.named_modules().items()}
    places = {second: ObservedPlace(paths[second], second, BEFORE, channel_axis(second)) for _, _, second in pairs}
    seen = observe("equalize", model, places.values(), batches, per_channel=True)
    for first, between, second in pairs:
        values = seen[places[second]].values
        _divide(first, between, second, _activation_factor(np.maximum(np.abs(values.low), np.abs(values.high)), second))


def _activation_factor(ranges: np.ndarray, second: Any) -> np.ndarray:
    weights = np.abs(_by_input(second)).reshape(len(ranges), -1).max(1)
    used = (ranges > 0) & (weights > 0)
    spread = (
        np.log(np.where(used, ranges, 1.0))
        if _is_depthwise(second)
        else np.log(np.where(used, ranges / np.where(used, weights, 1.0), 1.0)) / 2
    )
    return centred_factor(spread, used)


def centred_factor(spread: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Factors from their logarithms, with a geometric mean of 1; 1 for unused channels."""
    centred = spread - (spread[used].mean() if used.any() else 0.0)
    return np.where(used, np.exp(np.clip(centred, -MOST_SPREAD, MOST_SPREAD)), 1.0)


def _is_depthwise(layer: Any) -> bool:
    return (
        isinstance(layer, PRODUCTS)
        and not isinstance(layer, Linear)
        and layer.weight.shape[1] == 1
        and groups_of(layer) > 1
    )


def _pairs(model: Module, example: Any) -> list[tuple[Any, Module | None, Any]]:
    """Pairs of consecutive layers, and the activation between them."""
    readers, sharing = only_readers(model, example), sharing_layers(model)
    pairs: list[tuple[Any, Module | None, Any]] = []
    for first, reader in readers.items():
        between = reader if isinstance(reader, ReLU | ReLU6 | ClippedReLU) else None
        second = readers.get(reader) if between is not None else reader
        if not (isinstance(first, PRODUCTS) and isinstance(second, PRODUCTS)):
            continue
        scalable = can_scale(first, sharing) and can_scale(second, sharing) and _scales(first)
        if scalable and _fits(first, second):
            pairs.append((first, between, second))
    return pairs


def _scales(first: Any) -> bool:
    """Whether the activation of a layer commutes with positive factors."""
    return first.activation in (None, "linear", "identity", "relu", "relu6") or isinstance(
        first.activation, ClippedReLU
    )


def _fits(first: Any, second: Any) -> bool:
    """Whether both have the same channel axis: a Flatten between them mixes it."""
    return isinstance(first, Linear) == isinstance(second, Linear)


def _equalize(first: Any, between: Module | None, second: Any) -> np.ndarray:
    weight, next_weight = first.weight.numpy(), _by_input(second)
    mine = np.abs(weight).reshape(len(weight), -1).max(1)
    theirs = np.abs(next_weight).reshape(len(next_weight), -1).max(1)
    used = (mine > 0) & (theirs > 0)
    factor = np.where(used, np.sqrt(np.where(used, mine, 1.0) / np.where(used, theirs, 1.0)), 1.0)
    _divide(first, between, second, factor)
    return factor


def _divide(first: Any, between: Module | None, second: Any, factor: np.ndarray) -> None:
    """Divide the channels between two layers by factors."""
    divide_outputs(first, factor)
    multiply_inputs(second, factor)
    _divide_limit(first, between, factor)


def divide_outputs(layer: Any, factor: np.ndarray) -> None:
    """Divide the output channels of a layer by factors."""
    weight = layer.weight.numpy()
    set_weight(layer, weight / factor.reshape(-1, *[1] * (weight.ndim - 1)))
    if layer.bias is not None:
        set_tensor(layer, "bias", layer.bias.numpy() / factor)


def multiply_inputs(layer: Any, factor: np.ndarray) -> None:
    """Multiply the weights of each input channel by factors."""
    weight = _by_input(layer)
    _set_by_input(layer, weight * factor.reshape(-1, *[1] * (weight.ndim - 1)))


def _divide_limit(first: Any, between: Any, factor: np.ndarray) -> None:
    """Divide the 6 of a ReLU6 by the factors."""
    axis, six = channel_axis(first), np.full(len(factor), 6.0, np.float32)
    if first.activation == "relu6":
        first.activation = ClippedReLU(six, axis)
    if type(between) is ReLU6:
        between.__class__ = ClippedReLU  # type: ignore[assignment]
        between.axis, between.most = axis, asarray(six).realize()
    for limit in (first.activation, between):
        if isinstance(limit, ClippedReLU):
            limit.most.assign(asarray((limit.most.numpy() / factor).astype(np.float32)))


def _by_input(layer: Any) -> np.ndarray:
    """The weights with the input channel first: (inputs, outputs of its group, ...)."""
    weight, groups = layer.weight.numpy(), groups_of(layer)
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    return np.asarray(np.swapaxes(parts, 1, 2).reshape(groups * weight.shape[1], -1, *weight.shape[2:]))


def _set_by_input(layer: Any, value: np.ndarray) -> None:
    groups, inside = groups_of(layer), layer.weight.shape[1]
    parts = value.reshape(groups, inside, -1, *value.shape[2:])
    set_weight(layer, np.swapaxes(parts, 1, 2).reshape(layer.weight.shape))


def _spread(layer: Any) -> float:
    ranges = np.abs(layer.weight.numpy()).reshape(layer.weight.shape[0], -1).max(1)
    return float(ranges.max() / max(ranges[ranges > 0].min(initial=np.inf), 1e-30))


def corrected_bias(layer: Any, full: np.ndarray, rounded: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The bias that keeps the mean of a layer's result, given the mean of each channel of its input."""
    error = (rounded - full).reshape(*full.shape[:2], -1).sum(-1).astype(np.float64)  # (outputs, inputs of the group)
    groups = groups_of(layer)
    by_group = means.reshape(groups, 1, -1)
    shift = (error.reshape(groups, -1, full.shape[1]) * by_group).sum(-1).ravel()
    bias = np.zeros(len(full)) if layer.bias is None else layer.bias.numpy()
    corrected: np.ndarray = bias - shift
    return corrected
