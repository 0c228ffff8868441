"""Values as JSON files hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def json_value(value: Any) -> Any:
    """The value as JSON can hold it: numbers, texts, lists and mappings stay, all else becomes text.

    >>> json_value({"rate": 0.1, "betas": (0.9, 0.99), "loss": float("nan")})
    {'rate': 0.1, 'betas': [0.9, 0.99], 'loss': 'nan'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(v) for v in value]
    return repr(value)
