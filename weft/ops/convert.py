"""Conversion to tensors: `asarray` for any array-like, `parameter` for trainable tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import DEFAULT_FLOAT, DEFAULT_INT, DType, DTypeLike, as_dtype, converted
from ..errors import UserError
from ..graph.node import data
from ..runtime import Device, accelerator_of, dlpack
from ..runtime import device as find_device
from ..tensor import Tensor, function, number, wrap


@function
def asarray(
    obj: Any,
    /,
    *,
    dtype: DTypeLike | None = None,
    device: str | Device | None = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor from numbers, nested lists, NumPy arrays, or anything that shares memory (DLPack, buffers).

    Python floats become float32 and ints int64; arrays keep their dtype. A writable array is copied, because evaluation
    is lazy; `copy=False` shares its memory, or raises an error where that is impossible.

    >>> asarray([[1, 2], [3, 4]]).dtype
    weft.int64
    """
    wanted = None if dtype is None else as_dtype(dtype, "asarray")
    if isinstance(obj, bool | int | float) and not isinstance(obj, np.generic) and copy is not False:
        obj = number(obj, as_dtype(type(obj)) if wanted is None else wanted)
    if isinstance(obj, Tensor):
        return _as_given(obj if wanted is not None else obj.with_own_dtype(), wanted, device, copy)
    home = holding_accelerator("asarray", obj)
    if home is not None:
        return _as_given(imported("asarray", home, obj, copy, protect=True), wanted, device, copy)
    array, shared = _to_numpy(obj)
    foreign = isinstance(obj, np.ndarray | np.generic) or shared
    if not foreign and array.dtype.kind in "fuO" and _all_whole(obj):
        array = _whole_numbers(obj, wanted or DEFAULT_INT)
    natural = as_dtype(array.dtype, "asarray")
    if not foreign and wanted is not None and wanted.is_integer and natural.is_integer:
        _check_range(array, wanted)
    target = wanted or (DEFAULT_FLOAT if natural.is_float and not foreign else natural)
    if target.is_integer and natural.is_float and copy is not False:
        return asarray(array, device=device, copy=copy).astype(target)
    final = array if array.dtype == target.numpy else converted(array, target)
    if copy is False and not (shared and final is array):
        raise UserError("asarray", f"copy=False, but a copy is needed to make {target.name} from {type(obj).__name__}.")
    if shared and final is array and (copy or (copy is None and _writable(array))):
        final = array.copy()
    return wrap(data(find_device(device).put(final, target)))


def _all_whole(obj: Any) -> bool:
    """Whether a nested list holds only ints: NumPy converts ints without a common integer dtype to floats."""
    leaves = np.array(obj, dtype=object).ravel().tolist()
    return bool(leaves) and all(isinstance(v, int) for v in leaves)


def _whole_numbers(obj: Any, target: DType) -> np.ndarray:
    array = np.array(obj, dtype=object)
    if target.is_integer:
        _check_range(array, target)
    return array.astype(target.numpy)


def _as_given(x: Tensor, dtype: DType | None, where: str | Device | None, copy: bool | None) -> Tensor:
    if copy is False and dtype is not None and dtype is not x.dtype:
        raise UserError("asarray", f"copy=False, but a copy is needed to turn {x.dtype.name} into {dtype.name}.")
    if copy is False and where is not None and find_device(where) is not x.device:
        raise UserError("asarray", f"copy=False, but a copy is needed to move a tensor from {x.device} to {where}.")
    if dtype is not None:
        x = x.astype(dtype)
    return wrap(x.node) if where is None else x.to_device(where)


def _to_numpy(obj: Any) -> tuple[np.ndarray, bool]:
    """The object as an array, and whether the array is the object's own memory."""
    if isinstance(obj, np.ndarray):
        return obj, True
    if isinstance(obj, bytes | bytearray):
        return np.frombuffer(obj, np.uint8), True
    if hasattr(obj, "__dlpack__"):
        return from_capsule("asarray", obj), True
    if isinstance(obj, list | tuple):
        _refuse_tensors_with_history(obj)
    try:
        array = np.asarray(obj)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError("asarray", f"a rectangular nest of numbers is required: {error}.") from None
    if array.dtype.kind in "SUT" or (array.dtype.kind == "O" and not _all_whole(obj)):
        raise UserError("asarray", f"numbers are required, got {type(obj).__name__} of {array.dtype}.")
    return array, isinstance(obj, memoryview) or hasattr(obj, "__array_interface__") or hasattr(obj, "typecode")


def holding_accelerator(name: str, obj: Any) -> Device | None:
    """The accelerator that holds another library's array; None for all that the host can read."""
    if isinstance(obj, np.ndarray | np.generic) or not hasattr(obj, "__dlpack_device__"):
        return None
    try:
        return accelerator_of(obj)
    except UserError as error:
        raise UserError(name, error.message) from None
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(name, f"an array in memory is required, got {type(obj).__name__}: {error}.") from None


def imported(name: str, home: Device, obj: Any, copy: bool | None, *, protect: bool) -> Tensor:
    """Another library's array on an accelerator, imported by DLPack."""
    try:
        return wrap(data(home.from_dlpack(obj, copy, protect)))
    except UserError as error:
        raise UserError(name, error.message) from None
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise UserError(name, f"an array that can be shared is required, got {type(obj).__name__}: {reason}.") from None


def from_capsule(name: str, obj: Any, copy: bool | None = None) -> np.ndarray:
    """The memory of another library's array, imported by DLPack."""
    try:
        return dlpack.read(obj, copy)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise UserError(name, f"an array that can be shared is required, got {type(obj).__name__}: {reason}.") from None


def _refuse_tensors_with_history(obj: Any) -> None:
    stack, seen = [obj], set()
    while stack:
        part = stack.pop()
        if isinstance(part, list | tuple) and id(part) not in seen:
            seen.add(id(part))
            stack.extend(part)
        elif isinstance(part, Tensor) and (part._node.tracked or part._node.abstract):
            raise UserError(
                "asarray", "a list of tensors would lose their derivatives. Use weft.stack() or weft.concat()."
            )


def _check_range(array: np.ndarray, target: DType) -> None:
    if array.size:
        info = np.iinfo(target.numpy)
        low, high = array.min(), array.max()
        if low < info.min or high > info.max:
            raise UserError("asarray", f"{low if low < info.min else high} does not fit into {target.name}.")


def _writable(array: Any) -> bool:
    """Whether the memory of an array is still writable by its owner."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    owner = array.obj if isinstance(array, memoryview) else array
    return not isinstance(owner, bytes | None)


@function
def parameter(value: Any, *, dtype: DTypeLike | None = None) -> Tensor:
    """A tensor to take derivatives with respect to: `y.backward()` fills its `.grad`.

    >>> w = parameter([1.0, 2.0])
    >>> (w * w).sum().backward()
    >>> w.grad
    Tensor([2., 4.], dtype=float32)
    """
    start = asarray(value, dtype=dtype).detach()
    if not start._node.abstract:
        start.realize()  # a parameter is a place that holds a value
    new = wrap(start.node)
    new.become_parameter(start.node)
    return new
