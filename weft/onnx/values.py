"""The values of an ONNX graph: NumPy arrays that are known while a function is traced, tensors, lists (sequences), None (missing).

Nodes whose inputs are all known are computed on the host, so that shapes stay known under `weft.jit`. Arrays of dtypes that weft does
not have (strings, 8-bit and 4-bit floats, 4-bit integers) are always host values.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DType, as_dtype
from ..errors import UserError
from ..ops.convert import asarray
from ..ops.creation import arange, full
from ..tensor import Tensor
from ..tracing.context import sizes_are_free
from .package import onnx_package

Value = Any  # np.ndarray | Tensor | list[Value] | None


def has_weft_dtype(array: np.ndarray) -> bool:
    """Whether weft has tensors of this dtype."""
    try:
        as_dtype(array.dtype)
    except UserError:
        return False
    return True


def is_known(value: Value) -> bool:
    """Whether a value is on the host."""
    if isinstance(value, list):
        return all(is_known(v) for v in value)
    return not isinstance(value, Tensor)


def tensor(value: Value) -> Tensor:
    """A value as a tensor."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise UserError("onnx", f"a tensor is required, got {describe(value)}.")
    if not has_weft_dtype(value):
        raise UserError("onnx", f"weft has no tensors of {value.dtype}. Only casts and quantization take this dtype.")
    if sizes_are_free():
        computed = _from_sizes(value)
        if computed is not None:
            return computed
    if value.size == 1:  # a number of a formula: the compiler folds constants, and reads data from memory
        return full(value.shape, value.item(), dtype=as_dtype(value.dtype))
    return asarray(value)


def _from_sizes(value: np.ndarray) -> Tensor | None:
    """Equal elements and ranges, which shape arithmetic makes, as ops: a saved program computes them for every size."""
    if not value.size or value.dtype.kind not in "biuf":
        return None
    first = value.flat[0].item()
    if (value == first).all():
        return full(value.shape, first, dtype=value.dtype)
    if value.ndim == 1 and value.dtype.kind == "i" and (np.diff(value) == 1).all():
        return arange(first, first + value.size, dtype=value.dtype)
    return None


def known(value: Value, what: str = "this input") -> np.ndarray:
    """A value as a NumPy array. Under `weft.jit` it must not depend on the arguments of the function."""
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, Tensor):
        raise UserError("onnx", f"{what} must be a tensor, got {describe(value)}.")
    if value.node.abstract:
        raise UserError(
            "onnx",
            f"{what} decides the shape of the result, but it depends on values that are not known while a function is "
            "traced. Call the network without weft.jit.",
        )
    return value.numpy()


def frozen(array: Any) -> np.ndarray:
    """A read-only array: tensors share its memory instead of copying it."""
    found: np.ndarray = np.asarray(array)
    if found.flags.writeable:
        found.flags.writeable = False
    return found


def to_host(value: Value) -> Value:
    """The values of folded results."""
    if isinstance(value, Tensor):
        return frozen(value.numpy())
    return [to_host(v) for v in value] if isinstance(value, list) else value


def to_tensors(value: Value) -> Value:
    """Results for the user: tensors, wherever weft has the dtype."""
    if isinstance(value, np.ndarray) and has_weft_dtype(value):
        return tensor(value)
    return [to_tensors(v) for v in value] if isinstance(value, list) else value


def describe(value: Value) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a sequence of {len(value)}"
    return f"{value.dtype} of shape {value.shape}"


def numpy_dtype(code: int) -> np.dtype[Any]:
    """The NumPy dtype of a number of ONNX's `TensorProto.DataType`."""
    onnx = onnx_package()
    if code == onnx.TensorProto.UNDEFINED or code not in onnx.TensorProto.DataType.values():
        raise UserError("onnx", f"a known element type is required, got number {code}.")
    found: np.dtype[Any] = np.dtype(onnx_package("helper").tensor_dtype_to_np_dtype(code))
    return found


def weft_dtype(code: int) -> DType:
    return as_dtype(numpy_dtype(code), "onnx")


def dtype_code(value: Value) -> int:
    """The number of a value's dtype in `TensorProto.DataType`."""
    dtype = value.dtype.numpy if isinstance(value, Tensor) else value.dtype
    if dtype.kind in "OUST":
        return 8
    return int(onnx_package("helper").np_dtype_to_tensor_dtype(dtype))
