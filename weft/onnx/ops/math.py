"""Arithmetic, comparisons, bits and products."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ...dtypes import float64
from ...errors import UserError
from ...ops import elementwise as e
from ...ops.contract import einsum, matmul
from ...ops.elementwise import astype, maximum, minimum, where
from ...ops.math import clip, fmod, isinf, isnan, logical_and, logical_not, logical_or, logical_xor, reciprocal
from ...ops.movement import transpose
from ...tensor import Tensor
from ..attention import fused_attention
from ..registry import op

_UNARY: dict[str, Callable[..., Any]] = {
    "Abs": e.abs, "Acos": e.acos, "Acosh": e.acosh, "Asin": e.asin, "Asinh": e.asinh, "Atan": e.atan, "Atanh": e.atanh,
    "BitwiseNot": e.bitwise_invert, "Ceil": e.ceil, "Cos": e.cos, "Cosh": e.cosh, "Erf": e.erf, "Exp": e.exp,
    "Floor": e.floor, "IsNaN": isnan, "Log": e.log, "Neg": e.negative, "Not": logical_not, "Reciprocal": reciprocal,
    "Round": e.round, "Sigmoid": e.sigmoid, "Sign": e.sign, "Sin": e.sin, "Sinh": e.sinh, "Sqrt": e.sqrt, "Tan": e.tan,
    "Tanh": e.tanh,
}  # fmt: skip
_BINARY: dict[str, Callable[..., Any]] = {
    "Add": e.add, "And": logical_and, "BitwiseAnd": e.bitwise_and, "BitwiseOr": e.bitwise_or, "BitwiseXor": e.bitwise_xor,
    "Greater": e.greater, "GreaterOrEqual": e.greater_equal, "Less": e.less, "LessOrEqual": e.less_equal,
    "Mul": e.multiply, "Or": logical_or, "Sub": e.subtract, "Xor": logical_xor,
}  # fmt: skip


def _unary(function: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda x: function(x)


def _binary(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(x, y)


for _name, _function in _UNARY.items():
    op(_name)(_unary(_function))
for _name, _function in _BINARY.items():
    op(_name)(_binary(_function))


def truncated_quotient(x: Tensor, y: Tensor) -> Tensor:
    """The quotient of integers, rounded towards zero."""
    quotient = e.floor_divide(x, y)
    rest = x - quotient * y
    return where((rest != 0) & ((x < 0) != (y < 0)), quotient + 1, quotient)


@op("Div")
def div(x: Tensor, y: Tensor) -> Tensor:
    return e.divide(x, y) if x.dtype.is_float else truncated_quotient(x, y)


@op("Mod")
def mod(x: Tensor, y: Tensor, *, fmod: int = 0) -> Tensor:
    """The remainder with the sign of the divisor; with `fmod`, with the sign of the dividend."""
    if not fmod:
        return e.remainder(x, y)
    return _c_remainder(x, y) if x.dtype.is_float else x - truncated_quotient(x, y) * y


_c_remainder = fmod


@op("Pow")
def power(x: Tensor, y: Tensor) -> Tensor:
    """The result has the dtype of the base. Many exporters write squares so, as a product they are faster."""
    if y.size == 1 and y.ndim <= x.ndim and y.node.op.name == "const" and y.node.param("value") == 2:
        return x * x
    if x.dtype is y.dtype:
        return e.pow(x, y)
    if x.dtype.is_float:
        return e.pow(x, astype(y, x.dtype))
    if y.dtype.is_integer:
        return e.pow(x, astype(y, x.dtype))
    return astype(e.pow(astype(x, float64), astype(y, float64)), x.dtype)


@op("BitShift")
def bit_shift(x: Tensor, y: Tensor, *, direction: str) -> Tensor:
    if direction not in ("LEFT", "RIGHT"):
        raise UserError("onnx", f"the direction LEFT or RIGHT is required, got {direction!r}.")
    y = where(y < 0, y.dtype.bits, y) if y.dtype.kind == "int" else y  # nothing but the sign is left
    return e.bitwise_left_shift(x, y) if direction == "LEFT" else e.bitwise_right_shift(x, y)


@op("Equal", raw=True)
def equal(x: Any, y: Any) -> Any:
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return np.asarray(x == y, bool)
    return e.equal(x, y)


@op("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    return found if detect_positive else found & (x < 0)


@op("Where")
def choose(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return where(condition, x, y)


@op("Max")
def maximum_of(*xs: Tensor) -> Tensor:
    return reduce(maximum, xs)


@op("Min")
def minimum_of(*xs: Tensor) -> Tensor:
    return reduce(minimum, xs)


@op("Sum")
def sum_of(*xs: Tensor) -> Tensor:
    return reduce(e.add, xs)


@op("Mean")
def mean_of(*xs: Tensor) -> Tensor:
    return reduce(e.add, xs) / len(xs)


@op("Clip")
def clip_to_attributes(x: Tensor, *, min: float | None = None, max: float | None = None) -> Tensor:
    return clip(x, min, max)


@op("Clip", since=11)
def clip_to_inputs(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    """min(max(x, low), high): if low is above high, the result is high."""
    x = x if low is None else maximum(x, low)
    return x if high is None else minimum(x, high)


@op("MatMul")
def product(x: Tensor, y: Tensor) -> Tensor:
    return fused_attention(matmul(x, y))


@op("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """alpha * a' @ b' + beta * c"""
    y = matmul(transpose(a) if transA else a, transpose(b) if transB else b)
    y = y if alpha == 1.0 else _scaled(y, alpha)
    if c is None or beta == 0.0:
        return y
    return y + (c if beta == 1.0 else _scaled(c, beta))


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x * factor if x.dtype.is_float else x * int(factor)


@op("Einsum")
def einstein_sum(*xs: Tensor, equation: str) -> Tensor:
    return fused_attention(einsum(equation.replace(" ", ""), *xs))
