"""A fixed-point network in integers: products of integers are accumulated in int32 (int64 where the largest possible sum needs it), then shifted, rounded and
saturated to the bits of the result. It is bit-exact with the emulation in float where float32 represents all sums exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UserError
from ..nn import activations, dropout, pooling, shape
from ..nn.containers import Sequential
from ..nn.linear import Linear
from ..nn.merge import Residual
from ..nn.module import Module
from ..ops.contract import matmul
from ..ops.conv import conv, per_axis
from ..ops.convert import asarray
from ..ops.elementwise import floor, floor_divide, maximum, minimum
from ..ops.indexing import take
from ..ops.math import clip
from ..ops.movement import transpose
from ..ops.reduce import sum
from ..ops.window import window_sum
from ..tensor import ArrayLike, Tensor, as_tensor
from ..zoo.resnet import Shortcut
from .fake_quantize import FakeQuantize, QuantizedWeight
from .fixed_point import TableActivation
from .folding import PRODUCTS, groups_of
from .grids import Grid
from .parametrize import is_parametrized, parametrization_of
from .taps import AFTER, BEFORE, tapped

UNCHANGED = (  # layers that select or move numbers
    shape.Flatten, shape.Identity, shape.Permute, shape.Reshape, pooling.MaxPool1d, pooling.MaxPool2d, pooling.MaxPool3d,
    pooling.GlobalMaxPool, Shortcut,
)  # fmt: skip
ABSENT = (dropout.Dropout, dropout.Dropout1d, dropout.Dropout2d, dropout.Dropout3d)  # identity outside training
FLOAT_EXACT = 1 << 23  # float32 represents integers and halves below it exactly


def to_integers(model: Module) -> IntegerNetwork:
    """Convert a network quantized by `fixed_point` to one that computes with integers. The given network is not changed."""
    start = tapped(model, BEFORE)
    if not isinstance(start, FakeQuantize):
        raise UserError("to_integers", "a network made by fixed_point is required.")
    body, grid = _converted("", model, start.grid)
    return IntegerNetwork(start.grid, body.eval(), grid)


class IntegerNetwork(Module):
    """Takes and returns floats; everything in between is integers. `integers(x)` is the result before the conversion to float."""

    def __init__(self, start: Grid, body: Module, end: Grid) -> None:
        self.body = body
        self._start, self._end = start, end

    def forward(self, x: ArrayLike) -> Tensor:
        return self.integers(x).astype("float32") * float(self._end.scale)

    def integers(self, x: ArrayLike) -> Tensor:
        """The result as integers with the radix point of `format`."""
        start = self._start
        steps = floor(as_tensor(x).astype("float32") * float(2.0**start.fraction) + 0.5)
        found: Tensor = self.body(clip(steps, float(start.low), float(start.high)).astype(start.dtype))
        return found

    @property
    def format(self) -> Grid:
        """The grid of the result."""
        return self._end


class IntegerProduct(Module):
    """y = clip((act(W x << up + b) + half) >> shift): a convolution or a linear layer in integers."""

    def __init__(
        self, layer: Any, inputs: Grid, weight: np.ndarray, bias: np.ndarray, up: int, output: Requantize
    ) -> None:
        self.stride, self.padding = getattr(layer, "stride", 1), getattr(layer, "padding", 0)
        self.dilation, self.groups = getattr(layer, "dilation", 1), groups_of(layer)
        self.linear, self.activation, self.up, self.output = isinstance(layer, Linear), layer.activation, up, output
        largest = max(abs(inputs.low), inputs.high)
        sums = np.abs(weight.astype(np.int64)).reshape(len(weight), -1).sum(1).astype(object) * largest  # exact
        self.largest_sum = int(((sums << up) + np.abs(bias).astype(object)).max()) + (1 << max(output.shift, 0))
        self.largest_sum <<= max(-output.shift, 0)
        if self.largest_sum >= 1 << 63:
            raise UserError(
                "to_integers", f"sums below 2^63 are required, got up to 2^{self.largest_sum.bit_length() - 1}, because inputs, weights and biases of {type(layer).__name__}"
                f" {layer.weight.shape} differ too much in magnitude. Scale the inputs of the network.",
            )  # fmt: skip
        self.accumulator = "int32" if self.largest_sum < 1 << 31 else "int64"
        self.weight, self.bias = asarray(weight).realize(), asarray(bias.astype(self.accumulator)).realize()

    def forward(self, x: Tensor) -> Tensor:
        x, weight = x.astype(self.accumulator), self.weight.astype(self.accumulator)
        if self.linear:
            y = matmul(x, transpose(weight))
        else:
            y = conv(x, weight, stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups)
        bias = self.bias if self.linear else self.bias.reshape((-1, *[1] * (y.ndim - 2)))
        y = _activated(self.activation, (y << self.up if self.up else y) + bias, self.output.fraction)
        return self.output(y)  # type: ignore[no-any-return]

    @property
    def emulation_is_exact(self) -> bool:
        """Whether float32 represents all possible sums exactly."""
        return self.largest_sum < FLOAT_EXACT


class Requantize(Module):
    """Converts integers with `fraction` bits after the radix point to those of a grid: shifted, ties rounded up, saturated."""

    def __init__(self, fraction: int, grid: Grid) -> None:
        self.fraction, self.shift = fraction, fraction - grid.fraction
        self.low, self.high, self.dtype = grid.low, grid.high, grid.dtype

    def forward(self, x: Tensor) -> Tensor:
        if self.shift > 0:
            x = (x + (1 << (self.shift - 1))) >> self.shift
        elif self.shift < 0:
            x = x << -self.shift
        return clip(x, self.low, self.high).astype(self.dtype)


class IntegerMean(Module):
    """y = floor(sum * 2^up / count + 1/2): average pooling; without a size, global."""

    def __init__(self, size: tuple[int, ...] | None, stride: tuple[int, ...] | None, up: int, grid: Grid) -> None:
        self.size, self.stride, self.up = size, stride, up
        self.low, self.high, self.dtype = grid.low, grid.high, grid.dtype

    def forward(self, x: Tensor) -> Tensor:
        wide = x.astype("int64")
        if self.size is None:
            total, count = sum(wide, axis=tuple(range(2, x.ndim))), int(np.prod(x.shape[2:]))
        else:
            none = ((0, 0),) * x.ndim
            total = window_sum(wide, (1, 1, *self.size), (1, 1, *(self.stride or self.size)), none, (1,) * x.ndim)
            count = int(np.prod(self.size))
        total, count = total << max(self.up, 0), count << max(-self.up, 0)
        return clip(floor_divide(2 * total + count, 2 * count), self.low, self.high).astype(self.dtype)


class IntegerResidual(Module):
    """y = act(body(x) + shortcut(x)), both aligned to the same radix point before the addition."""

    def __init__(
        self, body: Module, shortcut: Module, ups: tuple[int, int], activation: Any, output: Requantize
    ) -> None:
        self.body, self.shortcut, self.ups, self.activation, self.output = body, shortcut, ups, activation, output

    def forward(self, x: Tensor) -> Tensor:
        first, second = (
            part(x).astype("int64") << up for part, up in zip((self.body, self.shortcut), self.ups, strict=True)
        )
        return self.output(_activated(self.activation, first + second, self.output.fraction))  # type: ignore[no-any-return]


class IntegerTable(Module):
    """y = table[x - low]: any function of an integer of up to 16 bits."""

    def __init__(self, function: Callable[[Any], Any], inputs: Grid, output: FakeQuantize) -> None:
        grid = output.grid
        known = np.arange(inputs.low, inputs.high + 1) * inputs.scale
        values = output(function(asarray(known.astype(np.float32)))).numpy()
        self.low = inputs.low
        self.table = asarray(np.rint(values / grid.scale).astype(grid.dtype)).realize()

    def forward(self, x: Tensor) -> Tensor:
        return take(self.table, x.astype("int32") - self.low, axis=0)


class IntegerReLU(Module):
    """y = max(x, 0), or min(max(x, 0), 6)."""

    def __init__(self, name: str, fraction: int) -> None:
        self.name, self.fraction = name, fraction

    def forward(self, x: Tensor) -> Tensor:
        return _activated(self.name, x.astype("int32"), self.fraction).astype(x.dtype)


def _activated(name: Any, x: Tensor, fraction: int) -> Tensor:
    if name in ("relu", "relu6"):
        x = maximum(x, 0)
    most = 6 << fraction if fraction >= 0 else 6 >> -fraction
    return minimum(x, most) if name == "relu6" and most <= np.iinfo(x.dtype.numpy).max else x


# --- conversion ---------------------------------------------------------------------------------------------------------------


def _converted(path: str, layer: Module, grid: Grid) -> tuple[Module, Grid]:
    """A layer in integers, and the grid of its result, given that of its input."""
    if isinstance(layer, UNCHANGED):
        return layer, grid
    if isinstance(layer, ABSENT):
        return shape.Identity(), grid
    if isinstance(layer, Sequential):
        return _sequence(path, layer, grid)
    if isinstance(layer, PRODUCTS):
        return _product(path, layer, grid)
    if isinstance(layer, Residual):
        return _residual(path, layer, grid)
    if isinstance(layer, activations.ReLU | activations.ReLU6):
        return IntegerReLU("relu6" if isinstance(layer, activations.ReLU6) else "relu", grid.fraction), grid
    output = tapped(layer, AFTER)
    if isinstance(layer, pooling.AvgPool1d | pooling.AvgPool2d | pooling.AvgPool3d | pooling.GlobalAvgPool):
        return _mean(path, layer, grid, _result(path, output))
    if isinstance(layer, activations.Tanh | activations.Sigmoid | activations.SiLU):
        end = _result(path, output)
        return IntegerTable(type(layer).forward.__get__(layer), grid, end), end.grid
    raise UserError(
        "to_integers",
        f"{path or 'the network'} is a {type(layer).__name__}, which has no form in integers. Known: Sequential, Residual, convolutions, linear layers, "
        "pooling, ReLU, ReLU6, Tanh, Sigmoid, SiLU and layers that only move numbers.",
    )


def _sequence(path: str, layer: Sequential, grid: Grid) -> tuple[Module, Grid]:
    parts = {}
    for name, part in layer.named().items():
        parts[str(name)], grid = _converted(f"{path}.layers.{name}".lstrip("."), part, grid)
    return Sequential(parts), grid


def _product(path: str, layer: Any, grid: Grid) -> tuple[Module, Grid]:
    weights, weight_grid = _integers(path, layer, "weight")
    table = layer.activation if isinstance(layer.activation, TableActivation) else None
    end = _result(path, tapped(layer, AFTER) if table is None else tapped(table, BEFORE)).grid
    fraction, bias, up = grid.fraction + weight_grid.fraction, np.zeros(len(weights), np.int64), 0
    if layer.bias is not None:
        bias, bias_grid = _integers(path, layer, "bias")
        up = max(0, bias_grid.fraction - fraction)  # a finer bias: products are shifted to its radix point
        bias = bias.astype(np.int64) << max(0, fraction - bias_grid.fraction)
    product = IntegerProduct(layer, grid, weights, bias, up, Requantize(fraction + up, end))
    if table is None:
        return product, end
    output = _result(path, tapped(layer, AFTER))
    function = activations.activation(table.function)
    return Sequential(product, IntegerTable(function, end, output)), output.grid


def _residual(path: str, layer: Residual, grid: Grid) -> tuple[Module, Grid]:
    body, first = _converted(f"{path}.body".lstrip("."), layer.body, grid)
    plain = layer.shortcut is None
    shortcut, second = (shape.Identity(), grid) if plain else _converted(f"{path}.shortcut".lstrip("."), layer.shortcut, grid)  # type: ignore[arg-type]  # fmt: skip
    fraction, end = max(first.fraction, second.fraction), _result(path, tapped(layer, AFTER)).grid
    ups = (fraction - first.fraction, fraction - second.fraction)
    return IntegerResidual(body, shortcut, ups, layer.activation, Requantize(fraction, end)), end


def _mean(path: str, layer: Any, grid: Grid, output: FakeQuantize) -> tuple[Module, Grid]:
    end = output.grid
    up = end.fraction - grid.fraction
    if isinstance(layer, pooling.GlobalAvgPool):
        return IntegerMean(None, None, up, end), end
    if layer.padding not in (0, "valid") or layer.ceil_mode:
        raise UserError("to_integers", f"average pooling without padding is required, got {path} with it.")
    size = per_axis("to_integers", "size", layer.size, layer.rank)
    stride = None if layer.stride is None else per_axis("to_integers", "stride", layer.stride, layer.rank)
    return IntegerMean(size, stride, up, end), end


def _integers(path: str, layer: Module, name: str) -> tuple[np.ndarray, Grid]:
    """The integers of a parameter and their grid."""
    found = parametrization_of(layer, name) if is_parametrized(layer, name) else None
    if not isinstance(found, QuantizedWeight):
        raise UserError("to_integers", f"{name} of {path} in fixed point is required. Call fixed_point first.")
    grid = found.quantizer.grid
    return np.rint(found().numpy() / grid.scale).astype(grid.dtype), grid


def _result(path: str, output: Module | None) -> FakeQuantize:
    if not isinstance(output, FakeQuantize):
        raise UserError(
            "to_integers", f"the result of {path or 'the network'} has no radix point. Call fixed_point first."
        )
    return output
