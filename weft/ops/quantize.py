"""Quantization: floats as integers of 4 to 16 bits with a scale and a zero point, for a whole tensor or for each channel.

    q = saturate(round(x / scale) + zero_point)        x ~ (q - zero_point) * scale

as ONNX defines it: halves are rounded to the even integer, and values out of range become the smallest or the largest integer. These
are compositions of other ops, so that they fuse: after a product of 8-bit integers, `requantize` is a part of its kernel.
"""

from __future__ import annotations

from ..dtypes import DType, DTypeLike, as_dtype, float32, iinfo
from ..errors import UserError
from ..tensor import ArrayLike, Tensor, as_tensor, function
from .declare import accept, as_float, normal_axis, whole
from .elementwise import astype, round
from .math import clip
from .movement import reshape


@function
def quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    axis: int | None = None,
    dtype: DTypeLike = "int8",
    bits: int | None = None,
) -> Tensor:
    """Floats as integers: saturate(round(x / scale) + zero_point).

    `scale` and `zero_point` are numbers, or vectors along `axis`. The dtype is int8, uint8, int16 or uint16; with fewer `bits`, such as
    4, values of that range are stored in it. The result has no derivative; to train with rounded values, add `stop_gradient(dequantize(
    quantize(x, scale), scale) - x)` to x (a straight-through estimator).

    >>> quantize([-1.0, 0.25, 0.75, 100.0], 0.5).tolist()
    [-2, 0, 2, 127]
    >>> quantize([[1.0, 2.0], [1.0, 2.0]], [0.5, 0.25], axis=0, dtype="uint8", zero_point=10).tolist()
    [[12, 14], [14, 18]]
    """
    x = as_float(as_tensor(x), "quantize")
    x = astype(x, float32) if x.dtype.is_half else x
    return _stored("quantize", x / _along("quantize", "scale", scale, x, axis, x.dtype), zero_point, axis, dtype, bits)


@function
def requantize(
    total: ArrayLike,
    multiplier: ArrayLike,
    zero_point: ArrayLike = 0,
    *,
    axis: int | None = None,
    dtype: DTypeLike = "int8",
    bits: int | None = None,
) -> Tensor:
    """The int32 sums of a product of quantized tensors, quantized again: saturate(round(total * multiplier) + zero_point).

    The multiplier is the scale of the left operand times that of the right one, divided by that of the result: a number, or one for each
    channel along `axis`. It is computed in float32. Add a bias to the total; a ReLU is the zero point as the least value, or
    `maximum(total, 0)`.

    >>> from weft import matmul
    >>> x, w = quantize([[1.0, -2.0]], 0.02), quantize([[0.5], [0.25]], 0.01)
    >>> requantize(matmul(x, w, dtype="int32") + 1000, 0.02 * 0.01 / 0.005).tolist()
    [[40]]
    """
    total = as_tensor(total)
    accept("requantize", total.dtype, "integer")
    wide = astype(total, float32)
    scaled = wide * _along("requantize", "multiplier", multiplier, wide, axis, float32)
    return _stored("requantize", scaled, zero_point, axis, dtype, bits)


@function
def dequantize(
    q: ArrayLike, scale: ArrayLike, zero_point: ArrayLike = 0, *, axis: int | None = None, dtype: DTypeLike = "float32"
) -> Tensor:
    """The floats that quantized integers represent: (q - zero_point) * scale.

    >>> dequantize(quantize([-1.0, 0.3], 0.5), 0.5).tolist()
    [-1.0, 0.5]
    """
    q, target = as_tensor(q), as_dtype(dtype, "dequantize")
    accept("dequantize", q.dtype, "integer")
    accept("dequantize", target, "float")
    wide = astype(q, target)
    if not _is_zero(zero_point):
        wide = wide - _along("dequantize", "zero point", zero_point, wide, axis, target)
    return wide * _along("dequantize", "scale", scale, wide, axis, target)


def _stored(
    name: str, ratio: Tensor, zero_point: ArrayLike, axis: int | None, dtype: DTypeLike, bits: int | None
) -> Tensor:
    """Round, add the zero point, saturate. The conversion of floats to integers saturates by itself."""
    target = as_dtype(dtype, name)
    low, high = _limits(name, target, bits)
    value = round(ratio)
    if not _is_zero(zero_point):
        value = value + _along(name, "zero point", zero_point, ratio, axis, ratio.dtype)
    limits = iinfo(target)
    if (low, high) != (limits.min, limits.max):
        value = clip(value, float(low), float(high))
    return astype(value, target)


def _limits(name: str, dtype: DType, bits: int | None) -> tuple[int, int]:
    """The least and the greatest value."""
    if not dtype.is_integer or dtype.bits > 16:
        raise UserError(name, f"one of int8, uint8, int16, uint16 is required, got {dtype.name}.")
    size = dtype.bits if bits is None else whole(name, "number of bits", bits, 2)
    if size > dtype.bits:
        raise UserError(
            name, f"at most the {dtype.bits} bits of {dtype.name} are possible, got bits={bits}. Use int16."
        )
    return (0, 2**size - 1) if dtype.kind == "uint" else (-(2 ** (size - 1)), 2 ** (size - 1) - 1)


def _is_zero(zero_point: ArrayLike) -> bool:
    return isinstance(zero_point, int) and zero_point == 0


def _along(name: str, what: str, value: ArrayLike, x: Tensor, axis: int | None, dtype: DType) -> Tensor:
    """A number, or a vector along an axis, in a shape that broadcasts against x."""
    given = as_tensor(value, dtype)  # a Python number is a constant of this dtype
    accept(name, given.dtype, "numeric")
    given = astype(given, dtype)
    if given.ndim == 0:
        return given
    if axis is None:
        raise UserError(name, f"axis= is required for a {what} of shape {given.shape}, got None.")
    index = normal_axis(name, axis, x.ndim)
    if given.shape != (x.shape[index],):
        raise UserError(name, f"a {what} of shape ({x.shape[index]},) is required for axis {axis}, got {given.shape}.")
    return reshape(given, [-1 if i == index else 1 for i in range(x.ndim)])
