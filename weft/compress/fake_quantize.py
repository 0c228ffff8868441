"""Fake quantization: values are rounded to a grid and stay floats. Gradients ignore the rounding (straight-through estimator), except where
a value lies outside the grid: there the derivative is 0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from ..nn.shape import Identity
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.elementwise import floor, round, stop_gradient
from ..ops.math import clip
from ..tensor import ArrayLike, Tensor, as_tensor
from .grids import Grid, shape_along
from .layers import Weight
from .parametrize import Parametrization

Rounding = Literal["even", "up"]  # of ties: to even as IEEE 754, or up as a shift of integers after adding a half


class FakeQuantize(Module):
    """y = (clip(round(x / scale) + zero, low, high) - zero) * scale, with the derivative of clip.

    >>> FakeQuantize(Grid(4, True, np.float32(0.5), np.int32(0)))(as_tensor([0.3, -0.8, 9.0])).tolist()
    [0.5, -1.0, 3.5]
    """

    def __init__(self, grid: Grid, rounding: Rounding = "even") -> None:
        self.bits, self.signed, self.axis, self.rounding = grid.bits, grid.signed, grid.axis, rounding
        self.scale = asarray(grid.scale).realize()
        self.zero = asarray(grid.zero.astype(np.float32)).realize()

    @property
    def grid(self) -> Grid:
        """The grid with the current scale and zero."""
        return Grid(self.bits, self.signed, self.scale.numpy(), self.zero.numpy().astype(np.int32), self.axis)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        scale, zero = self._along(self.scale, x.ndim), self._along(self.zero, x.ndim)
        steps = x / scale
        whole = floor(steps + 0.5) if self.rounding == "up" else round(steps)
        value = (clip(whole + zero, *self._integers()) - zero) * scale
        inside = clip(x, *self.ends(x.ndim))
        return stop_gradient(value) + (inside - stop_gradient(inside))  # the difference is 0, and its derivative is not

    def ends(self, ndim: int) -> tuple[Tensor, Tensor]:
        """The smallest and the largest number of the grid, in a shape that broadcasts with a tensor of `ndim` dimensions."""
        scale, zero = self._along(self.scale, ndim), self._along(self.zero, ndim)
        low, high = self._integers()
        return (low - zero) * scale, (high - zero) * scale

    def _integers(self) -> tuple[float, float]:
        grid = Grid(self.bits, self.signed, np.zeros(()), np.zeros(()))
        return float(grid.low), float(grid.high)

    def _along(self, value: Tensor, ndim: int) -> Tensor:
        return value if self.axis is None else value.reshape(shape_along(self.axis, ndim))


class QuantizedWeight(Parametrization):
    """A weight rounded to a grid. The original is trained: a tensor, or another parametrization, such as a pruning mask."""

    def __init__(self, original: ArrayLike | Parametrization, grid: Grid, rounding: Rounding = "even") -> None:
        self.original: Tensor | Parametrization
        if isinstance(original, Parametrization):
            self.original = original
        else:
            self.original = as_parameter(asarray(original).detach())
        self.quantizer = FakeQuantize(grid, rounding)

    @property
    def density(self) -> float:
        """The fraction of weights that are not pruned."""
        return self.original.density if isinstance(self.original, Parametrization) else 1.0

    def full(self) -> Tensor:
        """The weight before rounding."""
        value: Tensor = self.original() if isinstance(self.original, Parametrization) else self.original
        return value

    def forward(self) -> Tensor:
        value: Tensor = self.quantizer(self.full())
        return value


def quantize_weight(where: str, one: Weight, grid: Grid, rounding: Rounding = "even") -> None:
    """Round a weight of a layer to a grid; masks and codebooks below it remain. A weight that layers share is rounded once."""
    before = one.parametrization
    if isinstance(before, QuantizedWeight):
        if one.others:
            return
        raise UserError(where, f"weights that are not quantized yet are required, got {one.path}. Bake it first.")
    one.replace(QuantizedWeight(one.value if before is None else before, grid, rounding))


def quantizers(model: Module) -> Iterator[tuple[Module, str, FakeQuantize]]:
    """All fake quantizers of a network: the module that has it, the name of the attribute, and the quantizer."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, FakeQuantize):
                yield module, name, value


@contextmanager
def in_float(model: Module) -> Iterator[None]:
    """While active, nothing is rounded: the network computes with its float weights."""
    found = list(quantizers(model))
    try:
        for module, name, _ in found:
            setattr(module, name, Identity())
        yield
    finally:
        for module, name, quantizer in found:
            setattr(module, name, quantizer)
