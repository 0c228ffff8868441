"""`round_to`: arrays rounded to the numbers of a format, exactly as hardware with this format would: to nearest, ties to even."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UserError
from .number_format import FixedFormat, FloatFormat, NumberFormat, number_format


def round_to(array: Any, format: str | NumberFormat, *, saturate: bool = False) -> np.ndarray:
    """The nearest numbers of a format; ties go to the number whose last bit is 0.

    Beyond the range, floats become infinite as IEEE 754 says, or nan in float8_e4m3, which has no infinity; with `saturate` they become the
    largest number. A number is beyond it if it would be rounded to one that is: 65519 is 65504 in float16, and 65520 is infinite. Integers
    and fixed point always saturate, and nan is 0 there. Nothing is flushed: subnormal numbers are numbers.

    The result has the dtype of a float32 or float64 array, except that it is float64 where float32 cannot hold the numbers of the format.

        >>> round_to([0.1, 300.0, 70000.0], "float16")
        array([9.99755859e-02, 3.00000000e+02,            inf])
        >>> round_to([0.3, 100.0, -9.0], "q3.4")
        array([ 0.3125,  7.9375, -8.    ])
    """
    given = np.asarray(array)
    if given.dtype.kind not in "fiub" or given.dtype.itemsize > 8:
        raise UserError("round_to", f"an array of real numbers is required, got one of {given.dtype}.")
    found = number_format(format)
    with np.errstate(all="ignore"):  # infinities and nans are results here
        wide = given.astype(np.float64)
        rounded = (
            _rounded_float(wide, found, saturate) if isinstance(found, FloatFormat) else _rounded_fixed(wide, found)
        )
        return rounded.astype(np.float32) if given.dtype == np.float32 and fits_float32(found) else rounded


def fits_float32(format: NumberFormat) -> bool:
    """Whether float32 holds every number of a format."""
    if isinstance(format, FloatFormat):
        return format.fraction_bits <= 23 and format.exponent_bits <= 8
    return format.bits - format.signed <= 24 and format.largest < 2.0**128 and format.step >= 2.0**-149


def overflows(array: np.ndarray, format: NumberFormat) -> np.ndarray:
    """Which numbers lie beyond the range of a format: rounding makes them infinite, or the largest number."""
    wide = np.asarray(array, np.float64)
    with np.errstate(all="ignore"):
        if isinstance(format, FixedFormat):
            codes = np.rint(wide / format.step)
            return np.asarray((codes < format.low_code) | (codes > format.high_code))
        return np.asarray(np.isfinite(wide) & ~np.isfinite(_rounded_float(wide, format, False)))


def _rounded_float(x: np.ndarray, format: FloatFormat, saturate: bool) -> np.ndarray:
    if format.name == "float64":
        return x.copy()
    finite = np.isfinite(x)
    _, exponents = np.frexp(np.where(finite, x, 0.0))  # |x| is in [2^(e - 1), 2^e)
    last = np.maximum(exponents - 1, format.least_exponent) - format.fraction_bits  # the exponent of the last bit
    # Scaling by powers of two is exact here: the quotient has at most a few bits more than the format.
    rounded = np.ldexp(np.rint(np.ldexp(np.where(finite, x, 0.0), -last)), last)
    beyond = np.inf if format.has_infinity else np.nan
    limit = format.largest if saturate else beyond
    rounded = np.where(np.abs(rounded) > format.largest, np.copysign(limit, x), rounded)
    special = x if format.has_infinity else np.where(np.isinf(x), np.nan, x)
    if saturate:
        special = np.where(np.isinf(x), np.copysign(format.largest, x), x)
    return np.where(finite, rounded, special)


def _rounded_fixed(x: np.ndarray, format: FixedFormat) -> np.ndarray:
    codes = np.rint(np.ldexp(np.where(np.isnan(x), 0.0, x), format.fraction))
    return np.asarray(np.ldexp(np.clip(codes, format.low_code, format.high_code), -format.fraction))
