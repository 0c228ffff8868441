"""Linear layers in 8-bit floats: weights and activations as e4m3 with one scale per tensor, products summed in float32.

    float8(model, batches)                  # scales of activations from calibration data
    float8(model)                           # from the activations of every call

GPUs from compute capability 8.9 (NVIDIA Ada, Hopper) multiply them up to twice as fast as 16-bit floats; other devices decode them, which only saves
memory. Replaced layers can no longer be trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn.activations import Activation
from ..nn.activations import activation as find
from ..nn.checks import check_channels
from ..nn.linear import Linear
from ..nn.module import Module
from ..nn.replace import replace_layers
from ..ops.convert import asarray
from ..ops.elementwise import maximum
from ..ops.float8 import LARGEST, float8_matmul, to_float8
from ..ops.reduce import max as reduce_max
from ..tensor import ArrayLike, Tensor, as_tensor
from .layers import check_finite, layers_of
from .observers import ObservedPlace, batches_of, observe
from .taps import BEFORE

TINY = 2.0**-100  # the smallest scale, for tensors of zeros


class Float8Linear(Module):
    """y = x W^T + b over the last axis, as `nn.Linear`, in 8-bit floats; without `input_scale` each call computes one.

    >>> layer = Float8Linear(np.float32([[1.0, 2.0], [0.5, -4.0]]), None)
    >>> layer(asarray([[1.0, 0.5]])).numpy().round(4).tolist()
    [[2.0, -1.5]]
    """

    def __init__(
        self,
        weight: np.ndarray,
        bias: Tensor | None,
        activation: Activation = None,
        input_scale: float | None = None,
    ) -> None:
        scale = np.float32(max(float(np.abs(weight).max(initial=0.0)) / LARGEST["e4m3"], TINY))
        self.codes = to_float8(weight, scale).realize()
        self.scale = asarray(scale).realize()
        self.input_scale = None if input_scale is None else asarray(np.float32(input_scale)).realize()
        self.bias, self.activation = bias, activation

    @property
    def nbytes(self) -> int:
        """The bytes of the weight and its scale."""
        return int(self.codes.size) + 4

    def forward(self, x: ArrayLike) -> Tensor:
        x = check_channels("Float8Linear", as_tensor(x), self.codes.shape[1], axis=-1)
        scale = self.input_scale
        if scale is None:
            scale = maximum(reduce_max(abs(x)).astype("float32") * (1 / LARGEST["e4m3"]), TINY)
        y = float8_matmul(to_float8(x, scale), self.codes, scale, self.scale).astype(x.dtype)
        return find(self.activation)(y if self.bias is None else y + self.bias)


def float8(model: Module, calibration: Any = None, *, skip: Sequence[str] = ()) -> dict[str, int]:
    """Replace all linear layers by `Float8Linear`, in place; returns the bytes of each weight by path.

    `calibration` is an array, or batches x or (x, y), as passed to the network: the largest input of each layer determines its scale, and larger ones
    saturate. Without it, each call first finds the largest input. `skip` names layers that stay unchanged.

    >>> from weft import nn
    >>> net = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    >>> float8(net)
    {'layers.0': 132, 'layers.2': 36}
    """
    layers = layers_of("float8", model, (Linear,), skip, "linear layers")
    if model in layers.values():
        raise UserError("float8", "a network of layers is required, got a Linear. Put it in nn.Sequential.")
    scales = {} if calibration is None else _input_scales(model, layers, calibration)
    new = {
        path: Float8Linear(
            check_finite("float8", f"{path}.weight", layer.weight.numpy()),
            layer.bias,
            layer.activation,
            scales.get(path),
        ).train(layer.training)
        for path, layer in layers.items()
    }
    replace_layers(model, {layer: new[path] for path, layer in layers.items()})
    return {path: layer.nbytes for path, layer in new.items()}


def _input_scales(model: Module, layers: dict[str, Linear], calibration: Any) -> dict[str, float]:
    """The input scale of each layer."""
    places = {path: ObservedPlace(path, layer, BEFORE, -1) for path, layer in layers.items()}
    seen = observe("float8", model, places.values(), batches_of("float8", calibration, None), per_channel=False)
    found = {}
    for path, place in places.items():
        values = seen[place].values
        most = max(float(np.abs(values.low).max()), float(np.abs(values.high).max()))
        found[path] = max(most / LARGEST["e4m3"], TINY)
    return found
