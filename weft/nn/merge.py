"""Layers that merge several inputs, and the residual block."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from ..errors import UserError
from ..ops.elementwise import add, maximum, multiply
from ..ops.movement import concat
from ..tensor import Tensor, as_tensor
from .activations import Activation, known
from .activations import activation as find
from .module import Module


def _merged(layer: str, function: Callable[[Any, Any], Tensor], xs: tuple[Any, ...]) -> Tensor:
    if not xs:
        raise UserError(layer, "one or more inputs are required, got none.")
    return reduce(function, map(as_tensor, xs))


class Add(Module):
    """y = x_1 + x_2 + ..."""

    def forward(self, *xs: Any) -> Tensor:
        return _merged("Add", add, xs)


class Multiply(Module):
    """y = x_1 * x_2 * ..."""

    def forward(self, *xs: Any) -> Tensor:
        return _merged("Multiply", multiply, xs)


class Average(Module):
    """y = (x_1 + x_2 + ... + x_n) / n"""

    def forward(self, *xs: Any) -> Tensor:
        return _merged("Average", add, xs) / len(xs)


class Maximum(Module):
    """y = max(x_1, x_2, ...)"""

    def forward(self, *xs: Any) -> Tensor:
        return _merged("Maximum", maximum, xs)


class Concat(Module):
    """Concatenate all inputs along an axis (default: channels)."""

    def __init__(self, axis: int = 1) -> None:
        self.axis = axis

    def forward(self, *xs: Any) -> Tensor:
        if not xs:
            raise UserError("Concat", "one or more inputs are required, got none.")
        return concat(xs, axis=self.axis)


class Residual(Module):
    """y = activation(body(x) + shortcut(x)); the default shortcut is the identity (He et al. 2016)."""

    def __init__(self, body: Module, shortcut: Module | None = None, activation: Activation = None) -> None:
        for part in (body, shortcut):
            if part is not None and not isinstance(part, Module):
                raise UserError("Residual", f"modules are required, got {part!r}. Wrap a function in Lambda.")
        self.body, self.shortcut, self.activation = body, shortcut, known(activation)

    def forward(self, x: Any) -> Tensor:
        y, x = self.body(x), as_tensor(x) if self.shortcut is None else self.shortcut(x)
        if y.shape != x.shape:
            raise UserError(
                "Residual",
                f"body and shortcut of one shape are required, got {y.shape} and {x.shape}. "
                "Give a shortcut, such as a 1 x 1 convolution.",
            )
        return find(self.activation)(y + x)
