"""Dtypes and type promotion, by the table of the array API standard.

Where the standard leaves the result open, weft defines: bool promotes to the other dtype, an integer with a float to
that float, float16 with bfloat16 to float32. uint64 with a signed integer has no common dtype and raises an error.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import ml_dtypes
import numpy as np

from .errors import UserError

Kind = Literal["bool", "int", "uint", "float"]


class DType:
    """A dtype. Each dtype is a singleton, so they compare with `is`."""

    __slots__ = ("bits", "kind", "name", "numpy")

    def __init__(self, name: str, kind: Kind, bits: int, numpy: Any) -> None:
        self.name, self.kind, self.bits, self.numpy = name, kind, bits, np.dtype(numpy)

    @property
    def itemsize(self) -> int:
        return int(self.numpy.itemsize)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        return self.kind == "float" and self.bits == 16

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)  # unpickling and copying return the singleton

    def __repr__(self) -> str:
        return f"weft.{self.name}"


bool_ = DType("bool", "bool", 8, np.bool_)
int8, int16, int32, int64 = (DType(f"int{b}", "int", b, f"int{b}") for b in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType(f"uint{b}", "uint", b, f"uint{b}") for b in (8, 16, 32, 64))
float16, float32, float64 = (DType(f"float{b}", "float", b, f"float{b}") for b in (16, 32, 64))
bfloat16 = DType("bfloat16", "float", 16, ml_dtypes.bfloat16)

INTEGERS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
FLOATS = (float16, bfloat16, float32, float64)
DTYPES = (bool_, *INTEGERS, *FLOATS)
DEFAULT_FLOAT, DEFAULT_INT = float32, int64

_BY_NAME = {d.name: d for d in DTYPES}
_BY_NUMPY = {d.numpy: d for d in DTYPES}
_BY_PYTHON = {bool: bool_, int: DEFAULT_INT, float: DEFAULT_FLOAT}

DTypeLike = DType | str | type | np.dtype


def as_dtype(value: Any, where: str = "dtype") -> DType:
    """Convert a weft or NumPy dtype, its name, or `float`, `int`, `bool` to a dtype."""
    if isinstance(value, DType):
        return value
    if isinstance(value, type) and value in _BY_PYTHON:
        return _BY_PYTHON[value]
    if isinstance(value, str | type | np.dtype):
        try:
            return _BY_NAME[str(value)] if value in _BY_NAME else _BY_NUMPY[np.dtype(value).newbyteorder("=")]
        except (TypeError, KeyError, ValueError):
            pass
    raise UserError(where, f"there is no dtype {value!r}. weft has {', '.join(_BY_NAME)}.")


def converted(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Convert an array to a dtype with a single rounding; overflow becomes infinity.

    ml_dtypes converts float64 to bfloat16 via float32. Rounding that first step to odd makes the double rounding exact.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return (_rounded_to_odd(x) if dtype is bfloat16 and x.dtype == np.float64 else x).astype(dtype.numpy)


def _rounded_to_odd(x: np.ndarray) -> np.ndarray:
    """float64 to float32, rounded to odd: an inexact value becomes the neighbour whose last bit is 1."""
    near = np.asarray(x.astype(np.float32))
    back = near.astype(np.float64)
    inexact = (back != x) & (x == x)
    bits = near.view(np.uint32) - (inexact & (np.abs(back) > np.abs(x)))
    return np.asarray(bits | inexact, np.uint32).view(np.float32)


@cache
def promote(a: DType, b: DType) -> DType:
    """The dtype of a result computed from `a` and `b`."""
    if a is b or b.kind == "bool":
        return a
    if a.kind == "bool":
        return b
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.kind == b.kind:
        return float32 if a.bits == b.bits else max(a, b, key=lambda d: d.bits)
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if unsigned is uint64:
        raise UserError(
            "promote", f"{a.name} and {b.name} have no common integer dtype. Convert one with astype() first."
        )
    return _BY_NAME[f"int{max(signed.bits, 2 * unsigned.bits)}"]


def scalar_dtype(value: bool | int | float, other: DType) -> DType:
    """The dtype of a Python scalar combined with a tensor of dtype `other`: that of the tensor, if its kind can hold it."""
    if isinstance(value, bool) or other.is_float:
        return other
    if isinstance(value, float):
        return DEFAULT_FLOAT
    return DEFAULT_INT if other is bool_ else other


def isdtype(dtype: DTypeLike, kind: DTypeLike | tuple[DTypeLike, ...]) -> bool:
    """Whether `dtype` belongs to a kind, by the names of the array API.

    >>> isdtype(float32, "real floating"), isdtype(int8, ("bool", "signed integer")), isdtype(bool_, "numeric")
    (True, True, False)
    """
    dtype = as_dtype(dtype, "isdtype")
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str) and kind in _KINDS:
        return dtype.kind in _KINDS[kind]
    if isinstance(kind, str) and kind not in _BY_NAME:
        raise UserError("isdtype", f"there is no kind {kind!r}. The kinds are {', '.join(_KINDS)}.")
    return dtype is as_dtype(kind, "isdtype")


_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": (),
    "numeric": ("int", "uint", "float"),
}


def can_cast(source: DType, target: DType) -> bool:
    """Whether `source` can be promoted to `target` within its kind."""
    if target.kind == "bool" or (source.kind != "bool" and source.is_float != target.is_float):
        return source is target
    if (source.kind == "int" and target.kind == "uint") or (source is uint64 and target.kind == "int"):
        return False
    return promote(source, target) is target


def _dtype_of(value: Any) -> Any:
    """The dtype of an array, or the argument itself."""
    inner = getattr(value, "dtype", None)
    return inner if isinstance(inner, DType | np.dtype) else value


class finfo:
    """The limits of a floating dtype, as Python floats.

    >>> finfo(float16).max
    65504.0
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = as_dtype(_dtype_of(dtype), "finfo")
        if not self.dtype.is_float:
            raise UserError("finfo", f"a floating dtype is required, got {self.dtype.name}. Use iinfo for integers.")
        info: Any = ml_dtypes.finfo(self.dtype.numpy)  # type: ignore[no-untyped-call]
        self.bits: int = self.dtype.bits
        self.eps, self.max, self.min = float(info.eps), float(info.max), float(info.min)
        self.smallest_normal = float(info.smallest_normal)

    def __repr__(self) -> str:
        return f"finfo(dtype={self.dtype.name}, eps={self.eps:g}, min={self.min:g}, max={self.max:g})"


class iinfo:
    """The limits of an integer dtype.

    >>> iinfo(int8).min
    -128
    """

    def __init__(self, dtype: Any) -> None:
        self.dtype = as_dtype(_dtype_of(dtype), "iinfo")
        if not self.dtype.is_integer:
            raise UserError("iinfo", f"an integer dtype is required, got {self.dtype.name}. Use finfo for floats.")
        self.bits: int = self.dtype.bits
        info = np.iinfo(self.dtype.numpy)
        self.max, self.min = int(info.max), int(info.min)

    def __repr__(self) -> str:
        return f"iinfo(dtype={self.dtype.name}, min={self.min}, max={self.max})"
