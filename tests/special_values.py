"""The grid of special values, every elementwise function over it, and how results are compared: for the CPU's tests and the GPU's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft
from weft.dtypes import DTYPES, DType, bool_, finfo, iinfo
from weft.testing import counted

ROUNDED_UNARY = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sigmoid",
    "erf",
    "sin",
    "sinh",
    "tan",
    "tanh",
]
UNARY = [
    "abs",
    "ceil",
    "floor",
    "trunc",
    "round",
    "negative",
    "positive",
    "sign",
    "signbit",
    "sqrt",
    "square",
    "reciprocal",
    "isnan",
    "isinf",
    "isfinite",
    *ROUNDED_UNARY,
]
ROUNDED = [*ROUNDED_UNARY, "atan2", "hypot", "logaddexp", "pow", "exp2"]
BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "copysign",
    "nextafter",
    "atan2",
    "hypot",
    "logaddexp",
    "pow",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
]
OF_INTEGERS = [
    "abs",
    "negative",
    "sign",
    "square",
    "add",
    "subtract",
    "multiply",
    "floor_divide",
    "remainder",
    "fmod",
    "maximum",
    "minimum",
    "pow",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_right_shift",
]
OF_BOOLS = [
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_invert",
    "logical_and",
    "logical_not",
]
DIVIDES, COUNTS = ("floor_divide", "remainder", "fmod"), ("pow", "bitwise_left_shift", "bitwise_right_shift")
ULPS = 4


def special_values(dtype: DType) -> np.ndarray:
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_integer:
        low, high = iinfo(dtype).min, iinfo(dtype).max
        small = [-5, -2, -1] if low else [7]
        return np.array([low, low + 1, *small, 0, 1, 2, 3, 5, high - 1, high], dtype.numpy)
    info = finfo(dtype)
    sizes = [
        0.0,
        info.smallest_normal * info.eps,
        info.smallest_normal,
        0.5,
        1.0,
        1.5,
        2.5,
        5.0,
        info.max,
        math.inf,
        math.nan,
    ]
    return np.array([*sizes, *(-s for s in sizes)]).astype(dtype.numpy)


def names(dtype: DType) -> list[str]:
    return UNARY + BINARY if dtype.is_float else OF_BOOLS if dtype is bool_ else OF_INTEGERS


def all_of(dtype: DType) -> Callable[..., tuple[Any, ...]]:
    """A function of two tensors, a divisor and a count, that applies every function and every conversion."""

    def apply(x: Any, y: Any, divisor: Any, count: Any) -> tuple[Any, ...]:
        results = []
        for name in names(dtype):
            second = divisor if name in DIVIDES else count if name in COUNTS else y
            unary = name in UNARY or name in ("bitwise_invert", "logical_not")
            results.append(getattr(weft, name)(*(x,) if unary else (x, second)))
        return (*results, *(x.astype(other) for other in DTYPES if other is not dtype))

    return apply


def labels(dtype: DType) -> list[str]:
    return [*names(dtype), *(f"to {other.name}" for other in DTYPES if other is not dtype)]


def grid(dtype: DType) -> list[np.ndarray]:
    """Every pair of special values; for integers a divisor that is not 0 and a count that is not negative."""
    x = special_values(dtype)
    a, b = (np.ascontiguousarray(v).ravel() for v in np.broadcast_arrays(x[:, None], x))
    if not dtype.is_integer:
        return [a, b, b, b]
    return [a, b, np.where(b == 0, 1, b).astype(b.dtype), np.where(b < 0, 9, b).astype(b.dtype)]


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many ulps two arrays are apart; infinitely many between numbers, infinities, nans, and zeros of either sign."""
    if a.dtype.kind in "biu":
        return np.where(a == b, 0.0, math.inf)
    wide = [v.astype(np.float64) for v in (a, b)]
    same = (np.isnan(wide[0]) == np.isnan(wide[1])) & (np.isinf(wide[0]) == np.isinf(wide[1]))
    same &= (wide[0] != wide[1]) | (np.signbit(wide[0]) == np.signbit(wide[1]))
    apart = abs(_ordered(a) - _ordered(b))
    return np.where(same, np.where(np.isnan(wide[0]), 0, apart), math.inf)


def _ordered(x: np.ndarray) -> np.ndarray:
    """The floats numbered in their order."""
    size = x.dtype.itemsize
    bits = x.view(f"i{size}").astype(np.float64 if size < 8 else np.longdouble)
    return np.where(bits < 0, -(bits + 2.0 ** (8 * size - 1)), bits)


def compare(way: str, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], dtype: DType) -> None:
    x, y = grid(dtype)[:2]
    for label, a, e in zip(labels(dtype), actual, expected, strict=True):
        off = distance(np.ascontiguousarray(a), np.ascontiguousarray(e))
        most = ULPS if label in ROUNDED and dtype.is_float else 0
        wrong = [(x[i], y[i], a[i], "instead of", e[i]) for i in np.flatnonzero(off > most)[:4]]
        assert not wrong, f"{label} of {dtype.name}, {way}: {wrong}"
        counted()
