"""NumPy functions applied to tensors.

Universal functions, including NumPy's operators, return tensors: `np.sin(t)`, `np.float32(2) * t` and `array + t` call weft's own functions,
with derivatives, also inside compiled functions. All other NumPy functions, and universal functions with `out=` or as `np.add.reduce`, read
the value and return NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..tensor import FUNCTIONS, OPERANDS, Tensor

_NAMES = {
    "absolute": "abs", "fabs": "abs", "power": "pow", "rint": "round", "conjugate": "conj", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
}  # fmt: skip


_COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def array_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """A universal function of NumPy applied to tensors."""
    if not all(isinstance(i, OPERANDS) for i in inputs):
        return NotImplemented
    if method != "__call__" or "out" in settings:
        return getattr(ufunc, method)(*_values(inputs), **_values(settings))
    if settings:
        raise UserError("numpy", f"np.{ufunc.__name__} of tensors takes no settings, got {', '.join(settings)}.")
    if ufunc is np.divmod:
        return FUNCTIONS["floor_divide"](*inputs), FUNCTIONS["remainder"](*inputs)
    if ufunc.__name__ in _COMPARISONS:  # NumPy has converted a leading NumPy scalar to an array
        inputs = [i[()] if isinstance(i, np.ndarray) and not i.ndim else i for i in inputs]
    name = _NAMES.get(ufunc.__name__, ufunc.__name__)
    if name not in FUNCTIONS:
        raise UserError("numpy", f"weft has no function like np.{name}. Pass the value: np.{name}(tensor.numpy()).")
    return FUNCTIONS[name](*inputs)


def array_function(function: Callable[..., Any], args: Sequence[Any], settings: Mapping[str, Any]) -> Any:
    """Any other function of NumPy, applied to the values of tensors."""
    return function(*_values(args), **_values(settings))


def _values(x: Any) -> Any:
    """A nested argument with tensors replaced by arrays."""
    if isinstance(x, Tensor):
        return x.numpy()
    if isinstance(x, list | tuple):
        parts = [_values(part) for part in x]
        return parts if isinstance(x, list) else tuple(parts)
    return {name: _values(part) for name, part in x.items()} if isinstance(x, dict) else x


FUNCTIONS["array_ufunc"], FUNCTIONS["array_function"] = array_ufunc, array_function
