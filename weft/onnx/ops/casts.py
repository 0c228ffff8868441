"""Conversions between dtypes, also those of which weft has no tensors: strings, 8-bit and 4-bit floats, 4-bit integers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ...dtypes import as_dtype
from ...errors import UserError
from ...ops.elementwise import astype, view
from ...tensor import Tensor
from ..registry import op
from ..values import Value, frozen, has_weft_dtype, known, numpy_dtype

_STRING = 8
_FINITE_ONLY = ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")  # they saturate always


@op("Cast", raw=True)
def cast(x: Value, *, to: int, saturate: int = 1, round_mode: str = "up") -> Value:
    return _cast(x, to, bool(saturate), round_mode)


@op("CastLike", raw=True)
def cast_like(x: Value, like: Value, *, saturate: int = 1, round_mode: str = "up") -> Value:
    dtype = like.dtype.numpy if isinstance(like, Tensor) else like.dtype
    return _cast(x, dtype, bool(saturate), round_mode)


def _cast(x: Value, to: Any, saturate: bool, round_mode: str) -> Value:
    text = to == _STRING or (isinstance(to, np.dtype) and to.kind in "OUST")
    dtype = np.dtype(object) if text else to if isinstance(to, np.dtype) else numpy_dtype(to)
    target = np.empty(0, dtype)
    if isinstance(x, Tensor) and has_weft_dtype(target):
        return astype(x, as_dtype(dtype))
    array = known(x, "the input of a cast to a dtype of which weft has no tensors")
    if text:
        return _as_text(array)
    return frozen(convert(array, dtype, saturate, round_mode))


def _as_text(array: np.ndarray) -> np.ndarray:
    result = np.empty(array.size, object)
    result[:] = [str(v) for v in array.ravel()]
    return result.reshape(array.shape)


def convert(x: np.ndarray, dtype: np.dtype[Any], saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """An array as another dtype, by ONNX's rules: 8-bit floats saturate on request, integers drop high bits."""
    if x.dtype.kind in "OUST":
        x = np.array([float(v) for v in x.ravel()], np.float64).reshape(x.shape)
    name = dtype.name
    if name == "float8_e8m0fnu":
        return _power_of_two(x, dtype, saturate, round_mode)
    if name.startswith(("float8", "float6", "float4")):
        return _small_float(x, dtype, saturate or name in _FINITE_ONLY)
    if name in ("int4", "uint4", "int2", "uint2"):
        whole = x.astype(np.float32).astype(np.int32) if x.dtype.kind not in "iub" else x.astype(np.int32)
        return _wrapped(whole, name).astype(dtype)
    if not has_weft_dtype(np.empty(0, dtype)):
        raise UserError("onnx", f"a cast to {dtype} is not supported.")
    if not has_weft_dtype(x):
        x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def _wrapped(x: np.ndarray, name: str) -> np.ndarray:
    bits = int(name[-1])
    low = x & ((1 << bits) - 1)
    return low if name.startswith("u") else np.where(low >= 1 << (bits - 1), low - (1 << bits), low)


def _small_float(x: np.ndarray, dtype: np.dtype[Any], saturate: bool) -> np.ndarray:
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        result = wide.astype(dtype)
    if not saturate:
        return result
    limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    with np.errstate(all="ignore"):
        clipped = np.clip(wide, -limit, limit).astype(dtype)
    return np.where(np.isnan(wide), result, clipped)


def _power_of_two(x: np.ndarray, dtype: np.dtype[Any], saturate: bool, round_mode: str) -> np.ndarray:
    """float8_e8m0: the exponent alone. Rounding up, down, or to nearest (ties up)."""
    wide = np.abs(x.astype(np.float32))
    bits = wide.view(np.uint32)
    exponent, rest = (bits >> 23).astype(np.int64), bits & 0x7FFFFF
    if round_mode == "up":
        up = rest > 0
    elif round_mode == "nearest":
        up = rest >= 0x400000
    else:
        up = np.zeros(rest.shape, bool)
    exponent = exponent + up
    limit = 254 if saturate else 255
    exponent = np.where(np.isnan(wide), 255, np.minimum(exponent, limit))
    return exponent.astype(np.uint8).view(dtype)


@op("BitCast", raw=True)
def bit_cast(x: Value, *, to: int) -> Value:
    dtype = numpy_dtype(to)
    if isinstance(x, Tensor):
        if has_weft_dtype(np.empty(0, dtype)):
            target = as_dtype(dtype)
            return x if target is x.dtype else _reinterpreted(x, target)
        x = known(x, "the input of a cast to a dtype of which weft has no tensors")
    return frozen(x.view(dtype))


def _reinterpreted(x: Tensor, target: Any) -> Tensor:
    if "bool" in (x.dtype.name, target.name):
        return astype(x, target)
    return view(x, target)
