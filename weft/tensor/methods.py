"""Functions of weft as methods of tensors: `x.sum()` is `weft.sum(x)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from ..errors import UserError
from .base import TensorBase

Axis = int | Sequence[int] | None


class TensorMethods(TensorBase):
    """The methods of tensors that are functions of weft."""

    __slots__ = ()

    @property
    def T(self) -> Self:
        """The matrix transposed."""
        if self.ndim != 2:
            raise UserError("T", f"a matrix is required, got shape {self.shape}. Use mT or permute_dims().")
        return self.mT

    @property
    def mT(self) -> Self:
        """The matrices in the last two dimensions, transposed."""
        return self._apply("matrix_transpose")

    def reshape(self, *shape: Any) -> Self:
        """The same elements in another shape; one size may be -1."""
        wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return self._apply("reshape", wanted)

    def permute(self, *axes: Any) -> Self:
        """The dimensions in another order."""
        wanted = axes[0] if len(axes) == 1 and isinstance(axes[0], Sequence) else axes
        return self._apply("permute_dims", wanted)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The sum over axes."""
        return self._apply("sum", axis=axis, keepdims=keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The product over axes."""
        return self._apply("prod", axis=axis, keepdims=keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The maximum over axes."""
        return self._apply("max", axis=axis, keepdims=keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The minimum over axes."""
        return self._apply("min", axis=axis, keepdims=keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """The mean over axes."""
        return self._apply("mean", axis=axis, keepdims=keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether any element is true."""
        return self._apply("any", axis=axis, keepdims=keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Self:
        """Whether all elements are true."""
        return self._apply("all", axis=axis, keepdims=keepdims)

    def var(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Self:
        """The variance over axes."""
        return self._apply("var", axis=axis, correction=correction, keepdims=keepdims)

    def std(self, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Self:
        """The standard deviation over axes."""
        return self._apply("std", axis=axis, correction=correction, keepdims=keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the maximum, the first of equals."""
        return self._apply("argmax", axis=axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Self:
        """The index of the minimum, the first of equals."""
        return self._apply("argmin", axis=axis, keepdims=keepdims)

    def exp(self) -> Self:
        """The exponential of each element."""
        return self._apply("exp")

    def log(self) -> Self:
        """The natural logarithm of each element."""
        return self._apply("log")

    def sqrt(self) -> Self:
        """The square root of each element."""
        return self._apply("sqrt")

    def tanh(self) -> Self:
        """The hyperbolic tangent of each element."""
        return self._apply("tanh")

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)) of each element."""
        return self._apply("sigmoid")

    def relu(self) -> Self:
        """The positive part of each element."""
        return self._apply("relu")

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) scaled so that it sums to 1 along the axis."""
        return self._apply("softmax", axis=axis)

    def flatten(self, start: int = 0) -> Self:
        """The dimensions from `start` on as one."""
        return self._apply("flatten", start)

    def squeeze(self, axis: Axis = None) -> Self:
        """The tensor without dimensions of size 1."""
        wanted = [i for i, n in enumerate(self.shape) if n == 1] if axis is None else axis
        return self._apply("squeeze", wanted)
