"""Quantization: exact integer arithmetic, rounded half to even, saturated."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np

from ...dtypes import DType, as_dtype, iinfo, int32, uint8
from ...errors import UserError
from ...graph.node import CONST
from ...ops.contract import matmul
from ...ops.creation import full
from ...ops.elementwise import astype, round, where
from ...ops.math import clip
from ...ops.movement import reshape
from ...ops.reduce import max as reduce_max
from ...ops.reduce import min as reduce_min
from ...ops.reduce import sum
from ...ops.selection import repeat
from ...tensor import Tensor
from ...tracing.context import outside
from ..registry import op
from ..values import Value, frozen, has_weft_dtype, is_known, known, numpy_dtype, tensor, to_host
from .casts import convert
from .convolution import ConvAttributes, convolution

Ints = tuple[int, ...]


def _spread(v: Tensor, x: Tensor, axis: int, block: int) -> Tensor:
    """Scales or zero points in a shape that broadcasts against x: one for all, one along an axis, or one for each block."""
    if v.ndim == 0 or (v.size == 1 and v.ndim == 1 and not block):
        return reshape(v, ())
    if block:
        wide = repeat(v, block, axis=axis)
        return wide[(slice(None),) * (axis % x.ndim) + (slice(0, x.shape[axis]),)]
    return reshape(v, [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _wide(value: Value) -> Tensor:
    """Values of small dtypes as float32, integers as int32."""
    if isinstance(value, np.ndarray) and not has_weft_dtype(value):
        whole = value.dtype.name.lstrip("u").startswith("int")
        return tensor(value.astype(np.int32 if whole else np.float32))
    found = tensor(value)
    return found if found.dtype.is_float else astype(found, int32)


@op("QuantizeLinear", raw=True)
def quantize_linear(
    x: Value,
    scale: Value,
    zero_point: Value = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    saturate: int = 1,
    precision: int = 0,
) -> Value:
    """saturate(round(x / scale) + zero point)"""
    if zero_point is not None:
        target = zero_point.dtype.numpy if isinstance(zero_point, Tensor) else zero_point.dtype
    else:
        target = numpy_dtype(output_dtype) if output_dtype else np.dtype(np.uint8)
    fixed = all(is_known(v) for v in (x, scale, zero_point))
    given, steps = _wide(x), tensor(scale)
    wide = as_dtype(numpy_dtype(precision)) if precision else steps.dtype
    ratio = astype(given, wide) / astype(_spread(steps, given, axis, block_size), wide)
    zero = None if zero_point is None else _spread(_wide(zero_point), given, axis, block_size)
    if has_weft_dtype(np.empty(0, target)) and np.dtype(target).kind in "iu":
        result = saturated(ratio, zero, as_dtype(target))
        return to_host(result) if fixed else result
    return frozen(_small(known(ratio), None if zero is None else known(zero), target, bool(saturate)))


def _small(ratio: np.ndarray, zero: np.ndarray | None, target: np.dtype[Any], saturate: bool) -> np.ndarray:
    """Quantized to a dtype of which weft has no tensors."""
    name = target.name
    if name in ("int4", "uint4", "int2", "uint2"):
        bits = int(name[-1])
        low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        whole = np.rint(ratio.astype(np.float32)) + (0 if zero is None else zero)
        small: np.ndarray = np.clip(whole, low, high).astype(np.int32).astype(target)
        return small
    return convert(ratio.astype(np.float32) + (0 if zero is None else zero), target, saturate)


def saturated(ratio: Tensor, zero: Tensor | None, target: DType) -> Tensor:
    """round(ratio) + zero, clipped to the range of an integer dtype."""
    rounded = round(astype(ratio, "float32") if ratio.dtype.is_half else ratio)
    whole = rounded if zero is None else rounded + astype(zero, rounded.dtype)
    limits = iinfo(target)
    return astype(clip(whole, float(limits.min), float(limits.max)), target)


@op("DynamicQuantizeLinear")
def dynamically_quantized(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x in the levels of `levels_of`, with their distance and the level of 0."""
    scale, zero = levels_of(x)
    level = astype(zero, uint8)
    return saturated(x / scale, level, uint8), scale, level


def levels_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """256 levels from the smallest to the largest element, one of which is 0: their distance (1 if all elements are 0) and the level of 0."""
    low, high = clip(reduce_min(x), None, 0.0), clip(reduce_max(x), 0.0, None)
    scale = where(high > low, (high - low) / 255.0, 1.0)
    return scale, clip(round(-low / scale), 0.0, 255.0)


@op("DequantizeLinear", raw=True)
def dequantize_linear(
    x: Value, scale: Value, zero_point: Value = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Value:
    """(x - zero point) * scale"""
    if any(isinstance(v, Tensor) for v in (x, scale, zero_point)):
        return _dequantized(x, scale, zero_point, axis, block_size, output_dtype)
    with outside():
        return to_host(_dequantized(x, scale, zero_point, axis, block_size, output_dtype))


def _dequantized(x: Value, scale: Value, zero_point: Value, axis: int, block: int, output_dtype: int) -> Tensor:
    given, steps = _wide(x), _wide(scale)
    if zero_point is not None:
        given = given - _spread(_wide(zero_point), given, axis, block)
    code = numpy_dtype(output_dtype) if output_dtype else tensor(scale).dtype.numpy
    target = as_dtype(code)
    factor = _spread(steps, given, axis, block)
    return astype(given, target) * astype(factor, target)


def _centred(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """x - zero point as int32; a vector of zero points lies along an axis."""
    wide = astype(x, int32)
    return wide if zero is None else wide - _spread(astype(zero, int32), wide, axis, 0)


@op("MatMulInteger")
def integer_product(a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None) -> Tensor:
    """(a - a_zero) (b - b_zero) = a b - a b_zero - a_zero (b - b_zero): the first product reads 8-bit integers."""
    if a.ndim < 2 or b.ndim < 2:
        return matmul(_centred(a, a_zero, -1 if a.ndim == 1 else -2), _centred(b, b_zero, -1))
    total = matmul(a, b, dtype=int32)
    if b_zero is not None and not _is_zero(b_zero):
        sums = sum(a, axis=-1, keepdims=True, dtype=int32)
        total = total - sums * _spread(astype(b_zero, int32), b, -1, 0)
    if a_zero is not None and not _is_zero(a_zero):
        sums = sum(_centred(b, b_zero, -1), axis=-2, keepdims=True, dtype=int32)
        total = total - _spread(astype(a_zero, int32), a, -2, 0) * sums
    return total


def _is_zero(zero: Tensor) -> bool:
    """Whether a zero point is known to be 0."""
    return zero.node.op is CONST and zero.node.param("value") == 0


@op("QLinearMatMul")
def quantized_product(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    total = integer_product(a, b, a_zero, b_zero)
    rows = _spread(a_scale, total, -2 if total.ndim > 1 else -1, 0)
    factor = rows * _spread(b_scale, total, -1, 0) / _spread(y_scale, total, -2, 0)
    return saturated(astype(total, "float32") * astype(factor, "float32"), _spread(y_zero, total, -2, 0), y_zero.dtype)


@op("ConvInteger")
def integer_convolution(
    x: Tensor,
    w: Tensor,
    x_zero: Tensor | None = None,
    w_zero: Tensor | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Tensor:
    """The zero point of x is what its padding holds, so zeros are padded after it is subtracted.

    With w_zero = 0 that is conv(x, w) - x_zero conv(1, w): the first one reads 8-bit integers, the second is a constant.
    """
    if x_zero is not None and x_zero.size > 1:
        raise UserError("onnx", f"one zero point of the input is required, got {x_zero.shape}.")
    if w_zero is not None and not _is_zero(w_zero):
        return convolution(_centred(x, x_zero, 1), _centred(w, w_zero, 0), None, **attributes)
    wide = astype(w, int32)
    total = convolution(astype(x, int32), wide, None, **attributes)
    if x_zero is None or _is_zero(x_zero):
        return total
    ones = astype(full((1, *x.shape[1:]), 1, dtype=x.dtype), int32)
    return total - astype(reshape(x_zero, ()), int32) * convolution(ones, wide, None, **attributes)


@op("QLinearConv")
def quantized_convolution(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
    **attributes: Unpack[ConvAttributes],
) -> Tensor:
    total = integer_convolution(x, w, x_zero, w_zero, **attributes)
    total = total if bias is None else total + reshape(bias, (-1, *[1] * (x.ndim - 2)))
    factor = reshape(x_scale, ()) * _spread(w_scale, total, 1, 0) / reshape(y_scale, ())
    return saturated(astype(total, "float32") * factor, reshape(y_zero, ()), y_zero.dtype)
