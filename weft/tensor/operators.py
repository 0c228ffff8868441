"""The operators of tensors, one row an operator: the function of weft that it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import numpy as np

from .base import TensorBase
from .registry import FUNCTIONS

T = TypeVar("T", bound=TensorBase)
OPERANDS = (TensorBase, float, int, bool, np.ndarray, np.generic, list, tuple)


def _binary(name: str) -> Callable[[T, Any], T]:
    """The operator `self OP other`. Operands that are not tensors, numbers or arrays are left to their own class."""

    def operator(self: T, other: Any) -> T:
        result: T = FUNCTIONS[name](self, other) if isinstance(other, OPERANDS) else NotImplemented
        return result

    return operator


def _reflected(name: str) -> Callable[[T, Any], T]:
    """The operator `other OP self`."""

    def operator(self: T, other: Any) -> T:
        result: T = FUNCTIONS[name](other, self) if isinstance(other, OPERANDS) else NotImplemented
        return result

    return operator


def _unary(name: str) -> Callable[[T], T]:
    def operator(self: T) -> T:
        return FUNCTIONS[name](self)  # type: ignore[no-any-return]

    return operator


class TensorOperators(TensorBase):
    """Arithmetic, comparisons and bitwise operators."""

    __slots__ = ()

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _binary("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _binary("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _binary("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _binary("remainder"), _reflected("remainder")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __matmul__, __rmatmul__ = _binary("matmul"), _reflected("matmul")
    __lshift__, __rlshift__ = _binary("bitwise_left_shift"), _reflected("bitwise_left_shift")
    __rshift__, __rrshift__ = _binary("bitwise_right_shift"), _reflected("bitwise_right_shift")
    __and__, __rand__ = _binary("bitwise_and"), _reflected("bitwise_and")
    __or__, __ror__ = _binary("bitwise_or"), _reflected("bitwise_or")
    __xor__, __rxor__ = _binary("bitwise_xor"), _reflected("bitwise_xor")
    __lt__ = _binary("less")
    __le__ = _binary("less_equal")
    __gt__ = _binary("greater")
    __ge__ = _binary("greater_equal")
    __eq__ = _binary("equal")  # type: ignore[assignment]
    __ne__ = _binary("not_equal")  # type: ignore[assignment]
    __hash__ = object.__hash__
    __neg__ = _unary("negative")
    __pos__ = _unary("positive")
    __abs__ = _unary("abs")
    __invert__ = _unary("bitwise_invert")

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Self, Self]:
        return other // self, other % self

    def __round__(self, digits: int | None = None) -> Self:
        """Round to `digits` decimals, halves to even; the dtype is preserved."""
        if not digits or not self.dtype.is_float:
            return self._apply("round")
        scale = 10.0 ** abs(digits)
        return (self * scale)._apply("round") / scale if digits > 0 else (self / scale)._apply("round") * scale
