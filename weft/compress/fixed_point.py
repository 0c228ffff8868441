"""Fixed point: every tensor of a network is an array of integers with its own radix point (Qm.n), chosen from statistics.

    fixed_point(model, batches, bits=8)             # emulated in float: the values lie on the grids
    train.fit(model, data, rate=1e-4)               # fine-tuned, with straight-through gradients
    integers = to_integers(model)                   # the same network in integers: see integers.py

The input of the network, the weights, the biases and the results of layers are rounded; ties are rounded up, as by a shift after adding a half.
"""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import numpy as np

from ..errors import UserError
from ..hints import nearest
from ..nn.activations import Activation, Sigmoid, SiLU, Tanh, activation
from ..nn.merge import Add, Residual
from ..nn.module import Module
from ..nn.pooling import AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, AvgPool3d, GlobalAvgPool
from ..tensor import ArrayLike, Tensor, as_tensor
from .fake_quantize import FakeQuantize, quantize_weight, quantizers
from .folding import PRODUCTS, channel_axis, fold
from .grids import Grid, check_bits, fixed_point_grid
from .layers import parameter_of
from .observers import ObservedPlace, batches_of, observe
from .ranges import Values, squared_errors
from .taps import AFTER, BEFORE, tap

BITS = range(4, 17)
EXACT = (None, "linear", "identity", "relu", "relu6")  # activations that are exact on accumulators
ROUNDED = (
    *PRODUCTS,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool,
    AdaptiveAvgPool2d,
    Residual,
    Add,
    Tanh,
    Sigmoid,
    SiLU,
)
SATURATING = 4  # radix points to try beyond the one at which nothing overflows

Choice = Literal["mse", "minmax"]


class TableActivation(Module):
    """y = f(x) of a fixed-point input: x has few values, so the integer network uses a lookup table."""

    def __init__(self, function: Activation) -> None:
        self.function = function

    def forward(self, x: ArrayLike) -> Tensor:
        return activation(self.function)(x)


def fixed_point(
    model: Module,
    calibration: Any,
    bits: int | dict[str, int] = 8,
    *,
    activation_bits: int | None = None,
    bias_bits: int = 16,
    method: Choice = "mse",
    prepare: Module | None = None,
) -> dict[str, Grid]:
    """Round all tensors of a network to fixed-point numbers of 4 to 16 bits, emulated in float, in place; returns their grids by path.

    `bits` are those of all tensors, or of the layers by path (others have 8). The radix point of a tensor is the one with the least squared error, where
    a few values may saturate, or with `minmax` the one at which no observed value does. Non-negative tensors have no sign bit.
    """
    if method not in ("mse", "minmax"):
        raise UserError("fixed_point", f"method must be 'mse' or 'minmax', got {method!r}.")
    if next(quantizers(model), None) is not None:
        raise UserError("fixed_point", "a network that is not quantized yet is required.")
    batches = batches_of("fixed_point", calibration, prepare)
    if not (dtype := as_tensor(batches[0]).dtype).is_float:
        raise UserError(
            "fixed_point", f"inputs of floats are required, got {dtype}. Give prepare=, or use int8 or weight_only for tokens."
        )  # fmt: skip
    fold(model, batches[0])
    layers = {path: layer for path, layer in model.named_modules().items() if isinstance(layer, ROUNDED)}
    widths = _widths(bits, layers)
    for layer in layers.values():
        _make_exact(layer)
    places = _places(model, layers, batches[0])
    seen = observe("fixed_point", model, places, batches)
    for place in places:
        width = widths[place.path.removesuffix(".activation")] if place.path else max(widths.values())
        wanted = check_bits("fixed_point", activation_bits or width, BITS)
        quantizer = FakeQuantize(radix_point(seen[place].values, wanted, method), "up")
        tap(place.layer, **{"before" if place.where == BEFORE else "after": quantizer})
    for path, layer in layers.items():
        if isinstance(layer, PRODUCTS):
            _round_parameters(model, path, layer, widths[path], bias_bits, method)
    return formats(model)


def formats(model: Module) -> dict[str, Grid]:
    """The grids of all quantized tensors of a network: of weights and biases by their path, of inputs and results of layers."""
    paths = {module: path for path, module in model.named_modules().items()}
    names = {BEFORE: "input", AFTER: "result"}
    found = {}
    for module, name, quantizer in quantizers(model):
        path = paths[module].removesuffix("_parametrization")
        whole = path if name == "quantizer" else f"{path}.{names[name]}".lstrip(".")
        found[whole] = quantizer.grid
    return found


def radix_point(values: Values, bits: int, method: Choice) -> Grid:
    """The fixed-point grid of `bits` bits for values."""
    low, high = float(values.low.min()), float(values.high.max())
    signed = low < 0
    top = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    most = max(abs(low), abs(high))
    whole = int(np.floor(np.log2(top / most))) if most > 0 else bits - 1
    tried = [fixed_point_grid(bits, signed, whole + more) for more in range(SATURATING if method == "mse" else 1)]
    rows = [Grid(g.bits, g.signed, g.scale.reshape(1), g.zero.reshape(1), 0) for g in tried]
    return tried[int(np.argmin([squared_errors(values, row).sum() for row in rows]))]


def _widths(bits: int | dict[str, int], layers: dict[str, Any]) -> dict[str, int]:
    if not layers:
        raise UserError("fixed_point", "a network with convolutions or linear layers is required, got none.")
    given = bits if isinstance(bits, dict) else dict.fromkeys(layers, bits)
    for path, width in given.items():
        if path not in layers:
            raise UserError("fixed_point", f"bits are given for {path!r}, no such layer. {nearest(path, list(layers))}")
        check_bits("fixed_point", width, BITS)
    return dict.fromkeys(layers, 8) | given


def _make_exact(layer: Any) -> None:
    """Make a layer sum products exactly, as integers do: transforms (Winograd for 3 x 3 filters, FFT for large ones) round; activations of sums get an input of
    finitely many values, for a lookup table."""
    if "algorithm" in vars(layer) and prod(layer.weight.shape[2:]) > 1 and layer.weight.shape[1] > 1:
        layer.algorithm = "IMPLICIT_GEMM"
    if isinstance(layer, PRODUCTS) and layer.activation not in EXACT:
        layer.activation = TableActivation(layer.activation)


def _places(model: Module, layers: dict[str, Any], example: Any) -> list[ObservedPlace]:
    """The input of the network, the results of layers, and the inputs of activations that use lookup tables."""
    places = [ObservedPlace("", model, BEFORE, 1 if np.ndim(example) > 1 else 0)]
    for path, layer in layers.items():
        axis = channel_axis(layer) if isinstance(layer, PRODUCTS) else 1
        places.append(ObservedPlace(path, layer, AFTER, axis))
        if isinstance(getattr(layer, "activation", None), TableActivation):
            places.append(ObservedPlace(f"{path}.activation".lstrip("."), layer.activation, BEFORE, axis))
    return places


def _round_parameters(model: Module, path: str, layer: Any, bits: int, bias_bits: int, method: Choice) -> None:
    grid = radix_point(_signed(layer.weight.numpy()), bits, method)
    quantize_weight("fixed_point", parameter_of(model, path, layer), grid, "up")
    if layer.bias is None:
        return
    free = radix_point(_signed(layer.bias.numpy()), bias_bits, "minmax")
    # A bias much finer than the products that it is added to would only widen the accumulators.
    kept = fixed_point_grid(bias_bits, True, min(free.fraction, grid.fraction + bits))
    quantize_weight("fixed_point", parameter_of(model, path, layer, "bias"), kept, "up")


def _signed(values: np.ndarray) -> Values:
    """The values of a parameter, as signed: it may change its sign in training."""
    found = Values.exact(values, None)
    most = np.maximum(np.abs(found.low), np.abs(found.high))
    return Values(found.points, found.counts, -most, most, found.width)
