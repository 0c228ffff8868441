"""Elementwise functions composed of other ops."""

from __future__ import annotations

import math
from typing import Any

from ..dtypes import bool_, finfo, float64
from ..errors import UserError
from ..tensor import ArrayLike, Tensor, as_tensor, function
from .creation import zeros_like
from .declare import accept, as_float, together
from .elementwise import (
    abs,
    astype,
    bitwise_and,
    bitwise_invert,
    bitwise_or,
    bitwise_xor,
    copysign,
    greater,
    less,
    pow,
    remainder,
    sqrt,
    where,
)
from .reduce import all


@function
def positive(x: ArrayLike, /) -> Tensor:
    """x itself."""
    x = as_tensor(x)
    accept("positive", x.dtype, "numeric")
    return x


@function
def conj(x: ArrayLike, /) -> Tensor:
    """x itself: all numbers of weft are real."""
    return positive(x)


@function
def real(x: ArrayLike, /) -> Tensor:
    """x itself: all numbers of weft are real."""
    return positive(x)


@function
def imag(x: ArrayLike, /) -> Tensor:
    """Zeros: all numbers of weft are real."""
    return zeros_like(positive(x))


@function
def square(x: ArrayLike, /) -> Tensor:
    """x * x."""
    x = as_tensor(x)
    return x * x


@function
def reciprocal(x: ArrayLike, /) -> Tensor:
    """1 / x."""
    return 1.0 / as_float(as_tensor(x), "reciprocal")


@function
def rsqrt(x: ArrayLike, /) -> Tensor:
    """1 / sqrt(x)."""
    return 1.0 / sqrt(as_tensor(x))


@function
def exp2(x: ArrayLike, /) -> Tensor:
    """2 to the power x."""
    return pow(2.0, as_float(as_tensor(x), "exp2"))


@function
def signbit(x: ArrayLike, /) -> Tensor:
    """Where the sign is minus, also for -0.0."""
    x = as_float(as_tensor(x), "signbit")
    return copysign(1.0, x) < 0.0


@function
def fmod(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """x1 - x2 * trunc(x1 / x2): it has the sign of x1."""
    x, y = together("fmod", x1, x2)
    if x.dtype.is_float:
        return copysign(remainder(abs(x), abs(y)), x)
    rest = remainder(x, y)  # not of absolute values: the smallest integer has none
    return where((rest != 0) & ((rest < 0) != (x < 0)), rest - y, rest)


@function
def isnan(x: ArrayLike, /) -> Tensor:
    """Where x is not a number."""
    x = as_tensor(x)
    return x != x


@function
def isinf(x: ArrayLike, /) -> Tensor:
    """Where x is infinite."""
    x = as_tensor(x)
    return abs(x) == math.inf if x.dtype.is_float else x != x


@function
def isfinite(x: ArrayLike, /) -> Tensor:
    """Where x is a finite number."""
    x = as_tensor(x)
    return abs(x) < math.inf if x.dtype.is_float else x == x


@function
def isclose(x1: ArrayLike, x2: ArrayLike, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Where two values are equal up to a tolerance: |x1 - x2| <= atol + rtol * |x2|."""
    x, y = together("isclose", x1, x2)
    if not x.dtype.is_float:
        x, y = astype(x, float64), astype(y, float64)  # exact for all values that are likely to be compared
    near = (abs(x - y) <= abs(y) * rtol + atol) & isfinite(y)
    near = near | (x == y)
    return near | (isnan(x) & isnan(y)) if equal_nan else near


@function
def allclose(
    x1: ArrayLike, x2: ArrayLike, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether all values are equal up to a tolerance."""
    return all(isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=equal_nan))


@function
def nan_to_num(x: ArrayLike, /, value: float = 0.0) -> Tensor:
    """Replace nan by a value, and infinities by the largest finite numbers of the dtype."""
    x = as_tensor(x)
    if not x.dtype.is_float:
        return x
    largest = finfo(x.dtype).max
    return where(isnan(x), value, clip(x, -largest, largest))


@function
def clip(x: ArrayLike, /, min: Any = None, max: Any = None) -> Tensor:
    """min(max(x, min), max). The derivative at the bounds is 1.

    >>> clip(as_tensor([-1.0, 0.5, 9.0]), 0.0, 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    x = as_tensor(x)
    for bound, beyond in ((min, less), (max, greater)):
        if bound is None:
            continue
        limit = as_tensor(bound, x.dtype)
        if limit.dtype.is_float and not x.dtype.is_float:
            raise UserError("clip", f"bounds of dtype {x.dtype.name} are required, got {limit.dtype.name}.")
        limit = astype(limit, x.dtype)
        # A bound that is nan makes the result nan.
        plain = isinstance(bound, int | float) and bound == bound
        outside = beyond(x, limit) if plain else beyond(x, limit) | isnan(limit)
        x = where(outside, limit, x)
    return x


def _truth(x: ArrayLike) -> Tensor:
    return astype(as_tensor(x), bool_)


@function
def logical_not(x: ArrayLike, /) -> Tensor:
    """Where x is false."""
    return bitwise_invert(_truth(x))


@function
def logical_and(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where both are true."""
    return bitwise_and(_truth(x1), _truth(x2))


@function
def logical_or(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where either is true."""
    return bitwise_or(_truth(x1), _truth(x2))


@function
def logical_xor(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Where exactly one is true."""
    return bitwise_xor(_truth(x1), _truth(x2))
