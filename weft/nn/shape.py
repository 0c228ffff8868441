"""Layers that change the shape, and `Lambda`, a function as a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..ops.declare import as_ints
from ..ops.movement import flatten, permute_dims, reshape
from ..tensor import ArrayLike, Tensor, as_tensor
from .module import Module


class Identity(Module):
    """y = x"""

    def forward(self, x: ArrayLike) -> Tensor:
        return as_tensor(x)


class Flatten(Module):
    """Flatten the dimensions from `start` on: (batch, channels, height, width) becomes (batch, features)."""

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: ArrayLike) -> Tensor:
        return flatten(x, self.start)


class Reshape(Module):
    """Reshape each example; the batch dimension is kept. One size may be -1: it is inferred.

    >>> Reshape(2, -1)(as_tensor([[1, 2, 3, 4, 5, 6]])).shape
    (1, 2, 3)
    """

    def __init__(self, *shape: int) -> None:
        sizes = as_ints(shape)
        if sizes.count(-1) > 1 or any(n < 1 and n != -1 for n in sizes):
            raise UserError("Reshape", f"sizes of 1 or more, of which one may be -1, are required, got {shape}.")
        self.shape = sizes

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        return reshape(x, (x.shape[0], *self.shape))


class Permute(Module):
    """Permute the axes, including the batch (axis 0): Permute(0, 2, 1) swaps the last two of three."""

    def __init__(self, *axes: int) -> None:
        if sorted(as_ints(axes)) != list(range(len(axes))) or not axes:
            raise UserError("Permute", f"each axis from 0 on is required once, got {axes}.")
        self.axes = as_ints(axes)

    def forward(self, x: ArrayLike) -> Tensor:
        x = as_tensor(x)
        if x.ndim != len(self.axes):
            raise UserError("Permute", f"an input of {len(self.axes)} dimensions is required, got shape {x.shape}.")
        return permute_dims(x, self.axes)


class Lambda(Module):
    """y = function(x), or of several inputs: a function as a layer. Its result must depend only on its inputs.

    >>> Lambda(lambda x: 2.0 * x, "twice")
    Lambda(name=twice)
    """

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        if not callable(function) or isinstance(function, type):
            raise UserError("Lambda", f"a function is required, got {function!r}.")
        self.function, self.name = function, name

    def forward(self, *xs: Any) -> Any:
        return self.function(*xs)
