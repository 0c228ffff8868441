"""Python numbers as constants of a dtype: which dtype they take, and whether they fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import FLOATS, INTEGERS, DType, bool_, converted, finfo, iinfo
from ..errors import UserError


def checked_number(value: bool | int | float, dtype: DType) -> bool | int | float:
    """Check that a number fits into a dtype."""
    if (dtype.is_integer or isinstance(value, int)) and not _fits(value, dtype):
        raise UserError("constant", f"{value} does not fit into {dtype.name}. Convert the tensor with astype() first.")
    return int(value) if dtype.is_integer else value


def _fits(value: float, dtype: DType) -> bool:
    """Whether a number is in the range of a dtype; one beyond the largest float that rounds to it is."""
    low, high = LIMITS[dtype]
    if low <= value <= high or not dtype.is_float:
        return low <= value <= high
    return abs(value) < 1 << 1024 and bool(np.isfinite(converted(np.asarray(float(value)), dtype)))


LIMITS: dict[DType, tuple[float, float]] = {d: (iinfo(d).min, iinfo(d).max) for d in INTEGERS}
LIMITS |= {d: (finfo(d).min, finfo(d).max) for d in FLOATS} | {bool_: (-math.inf, math.inf)}


def holds_floats(value: Any) -> bool:
    """Whether the first leaf of a nested list is a Python float."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, float)
