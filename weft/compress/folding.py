"""Folding: batch norm becomes part of the convolution or linear layer before it, and so does the activation after them.

Folded layers become nn.Identity, so paths and the code of the network are unchanged. The result is the same up to rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..nn.activations import ReLU, ReLU6
from ..nn.conv import Conv1d, Conv2d, Conv3d, DepthwiseConv2d
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.norm import BatchNorm
from ..nn.shape import Identity
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..tensor import Tensor
from .connections import only_readers
from .layers import sharing_layers
from .masks import Mask
from .parametrize import is_parametrized, parametrization_of

PRODUCTS = (Conv1d, Conv2d, Conv3d, DepthwiseConv2d, Linear)  # layers with weights (outputs, ...) and an activation
_ACTIVATIONS = {ReLU: "relu", ReLU6: "relu6"}


def fold(model: Module, example: Any, *, activations: bool = True) -> list[str]:
    """Fold batch norms (and ReLUs) into the layers before them; returns the paths of folded layers."""
    paths = {module: path for path, module in model.named_modules().items()}
    readers, folded, sharing = only_readers(model, example), [], sharing_layers(model)
    for layer, reader in readers.items():
        if _takes(layer) and isinstance(reader, BatchNorm) and reader.track and can_scale(layer, sharing):
            _fold_norm(layer, reader)
            folded.append(paths[reader])
            become_identity(reader)
    if folded and activations:
        readers = only_readers(model, example)
    for layer, reader in readers.items() if activations else ():
        if _takes(layer) and type(reader) in _ACTIVATIONS:
            layer.activation = _ACTIVATIONS[type(reader)]
            folded.append(paths[reader])
            become_identity(reader)
    return folded


def become_identity(layer: Module) -> None:
    """Turn a layer into one that passes its input on."""
    for name in [n for n in vars(layer) if n != "training"]:
        delattr(layer, name)
    layer.__class__ = Identity


def can_scale(layer: Module, sharing: set[Module]) -> bool:
    """Whether the weights of a channel can be multiplied by a factor: they are parameters, pruned or not, of this layer alone, and not codebook values."""
    plain = not is_parametrized(layer, "weight") or isinstance(parametrization_of(layer, "weight"), Mask)
    return plain and layer not in sharing


def set_weight(layer: Module, value: np.ndarray) -> None:
    """Change the weight of a layer that is a parameter, pruned or not."""
    masked = is_parametrized(layer, "weight")
    set_tensor(parametrization_of(layer, "weight") if masked else layer, "original" if masked else "weight", value)


def set_tensor(layer: Any, name: str, value: np.ndarray) -> None:
    """Change a parameter of a layer, or add one that it did not have."""
    known = getattr(layer, name)
    if isinstance(known, Tensor):
        known.assign(asarray(value, dtype=known.dtype))
    else:
        setattr(layer, name, as_parameter(asarray(value, dtype=layer.weight.dtype)))


def channel_axis(layer: Module) -> int:
    """The axis of the channels in inputs and results of a layer."""
    return -1 if isinstance(layer, Linear) else 1


def groups_of(layer: Any) -> int:
    """The number of channel groups of a layer."""
    if isinstance(layer, DepthwiseConv2d):
        return int(layer.weight.shape[0]) // layer.multiplier
    return int(getattr(layer, "groups", 1))


def _takes(layer: Module) -> bool:
    return isinstance(layer, PRODUCTS) and layer.activation in (None, "linear", "identity")


def _fold_norm(layer: Any, norm: BatchNorm) -> None:
    mean, var = norm.mean.numpy().astype(np.float64), norm.var.numpy().astype(np.float64)
    factor = 1.0 / np.sqrt(var + norm.eps)
    shift = np.zeros_like(mean)
    if norm.scale is not None and norm.shift is not None:
        factor, shift = factor * norm.scale.numpy(), norm.shift.numpy()
    weight = layer.weight.numpy()
    bias = np.zeros_like(mean) if layer.bias is None else layer.bias.numpy()
    set_weight(layer, weight * factor.reshape(-1, *[1] * (weight.ndim - 1)))
    set_tensor(layer, "bias", (bias - mean) * factor + shift)
