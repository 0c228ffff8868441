"""The inspection functions of the Python array API standard."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from ..dtypes import DEFAULT_FLOAT, DEFAULT_INT, DTYPES, DType, as_dtype, isdtype, promote, scalar_dtype
from ..dtypes import can_cast as can_cast_dtype
from ..errors import UserError
from ..runtime import Device, device, devices
from ..tensor import Tensor, function


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The promoted dtype of tensors, dtypes and Python numbers.

    >>> from weft import float32, int8, uint8
    >>> result_type(int8, uint8), result_type(float32, 1)
    (weft.int16, weft.float32)
    """
    numbers = [a for a in arrays_and_dtypes if isinstance(a, bool | int | float)]
    strong = [
        a.dtype if isinstance(a, Tensor) else as_dtype(a)
        for a in arrays_and_dtypes
        if not isinstance(a, bool | int | float)
    ]
    if not strong:
        raise UserError("result_type", "at least one tensor or dtype is required.")
    result = strong[0]
    for dtype in strong[1:]:
        result = promote(result, dtype)
    for value in numbers:
        result = promote(result, scalar_dtype(value, result))
    return result


def can_cast(source: Any, target: Any, /) -> bool:
    """Whether one dtype can be promoted to another.

    >>> from weft import int8, int16
    >>> can_cast(int8, int16), can_cast(int16, int8)
    (True, False)
    """
    return can_cast_dtype(source.dtype if isinstance(source, Tensor) else as_dtype(source), as_dtype(target))


class Info:
    """The result of `weft.__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        return device()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        return {"real floating": DEFAULT_FLOAT, "integral": DEFAULT_INT, "indexing": DEFAULT_INT}

    def devices(self) -> list[Device]:
        return devices()

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        standard = [d for d in DTYPES if not d.is_float or d.bits > 16]  # the standard has no smaller floats
        return {d.name: d for d in standard if kind is None or isdtype(d, kind)}


def __array_namespace_info__() -> Info:
    """What this namespace can do, as the array API standard asks."""
    return Info()


@function
def array_namespace(api_version: str | None) -> ModuleType:
    """The namespace of a tensor, as the array API standard asks."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise UserError("array_namespace", f"weft follows version 2024.12 of the standard, not {api_version!r}.")
    return sys.modules[__name__.partition(".")[0]]
