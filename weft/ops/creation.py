"""Creation functions: constants, ranges and compositions of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..dtypes import DEFAULT_FLOAT, DEFAULT_INT, DType, DTypeLike, as_dtype, float32, float64, int64
from ..errors import UserError
from ..graph.node import Op, Type
from ..runtime import Device
from ..runtime import device as find_device
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function, number
from .convert import asarray, from_capsule, holding_accelerator, imported
from .declare import Sample, Wrong, normal_shape, whole
from .elementwise import astype, where
from .movement import broadcast_to, expand_dims, reshape


def _iota_infer(n: int, dtype: DType) -> Type:
    if n < 0 or not (dtype.is_integer or dtype.is_float):
        raise UserError("iota", f"a count of 0 or more and a numeric dtype are required, got {n} and {dtype.name}.")
    return Type((n,), dtype)


_IOTA = Op(
    "iota", "leaf", _iota_infer, lambda n, dtype: np.arange(n).astype(dtype.numpy), None, ("n", "dtype"), 0,
    samples=lambda rng: (Sample([], (n, d)) for n in (0, 1, 7) for d in (int64, float32)),
    errors=(Wrong(lambda: iota(-1), "[iota] a count of 0 or more and a numeric dtype are required, got -1"),),
    kernel="loop",
)  # fmt: skip


def iota(n: int, dtype: DType = DEFAULT_INT) -> Tensor:
    """0, 1, 2, ... n-1."""
    return emit(_IOTA, (), (n, dtype))


def place(x: Tensor, device: str | Device | None) -> Tensor:
    """The tensor on a device, if one is given."""
    return x if device is None else x.to_device(device)


@function
def full(
    shape: int | Sequence[int],
    fill_value: bool | int | float,
    *,
    dtype: DTypeLike | None = None,
    device: str | Device | None = None,
) -> Tensor:
    """A tensor filled with one number.

    >>> full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    if isinstance(fill_value, Tensor):
        value = fill_value if dtype is None else fill_value.astype(dtype)
        return place(broadcast_to(value, normal_shape("full", shape)), device)
    if isinstance(fill_value, np.generic):
        fill_value = fill_value.item()
    if not isinstance(fill_value, bool | int | float):
        raise UserError("full", f"a number is required to fill with, got {fill_value!r}.")
    target = as_dtype(type(fill_value) if dtype is None else dtype, "full")
    return place(number(fill_value, target, normal_shape("full", shape)), device)


@function
def zeros(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: str | Device | None = None) -> Tensor:
    """A tensor of zeros, float32 by default."""
    return full(shape, 0, dtype=DEFAULT_FLOAT if dtype is None else dtype, device=device)


@function
def ones(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: str | Device | None = None) -> Tensor:
    """A tensor of ones, float32 by default."""
    return full(shape, 1, dtype=DEFAULT_FLOAT if dtype is None else dtype, device=device)


@function
def empty(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: str | Device | None = None) -> Tensor:
    """A tensor with unspecified values; they are zeros, because uninitialized memory would not be faster."""
    return zeros(shape, dtype=dtype, device=device)


@function
def full_like(
    x: ArrayLike,
    /,
    fill_value: bool | int | float,
    *,
    dtype: DTypeLike | None = None,
    device: str | Device | None = None,
) -> Tensor:
    """A tensor of the shape and dtype of another, filled with one number."""
    x = as_tensor(x)
    return full(x.shape, fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


@function
def zeros_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: str | Device | None = None) -> Tensor:
    """Zeros of the shape and dtype of another tensor."""
    return full_like(x, 0, dtype=dtype, device=device)


@function
def ones_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: str | Device | None = None) -> Tensor:
    """Ones of the shape and dtype of another tensor."""
    return full_like(x, 1, dtype=dtype, device=device)


@function
def empty_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: str | Device | None = None) -> Tensor:
    """A tensor with unspecified values (zeros), with the shape and dtype of another."""
    return zeros_like(x, dtype=dtype, device=device)


@function
def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: str | Device | None = None,
) -> Tensor:
    """Numbers from start (inclusive) to stop (exclusive).

    >>> arange(2, 8, 3).tolist()
    [2, 5]
    """
    start, stop = (0, start) if stop is None else (start, stop)
    start, stop, step = (v.item() if isinstance(v, np.generic) else v for v in (start, stop, step))
    if step == 0:
        raise UserError("arange", "a step other than 0 is required.")
    whole = all(isinstance(v, int) for v in (start, stop, step))
    target = as_dtype(dtype, "arange") if dtype is not None else DEFAULT_INT if whole else DEFAULT_FLOAT
    if not whole:
        count = max(0, math.ceil((stop - start) / step))
        return place(astype(iota(count, float64) * float(step) + float(start), target), device)
    values = range(int(start), int(stop), int(step))
    for end in values[:1], values[-1:]:
        _ = [number(v, target) for v in end]  # both ends must fit
    if target.is_float:
        return place(astype(iota(len(values), float64) * float(step) + float(start), target), device)
    # Integers are computed modulo 2**64, so that the upper half of uint64 needs no special case.
    return place(astype(iota(len(values)) * _wrapped(values.step) + _wrapped(values.start), target), device)


def _wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


@function
def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: DTypeLike | None = None,
    device: str | Device | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers from start to stop.

    >>> linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    target = as_dtype(dtype, "linspace") if dtype is not None else DEFAULT_FLOAT
    num = whole("linspace", "count", num)
    gaps = num - 1 if endpoint else num
    index = iota(num, float64)
    values = index * ((stop - start) / gaps if gaps > 0 else 0.0) + float(start)
    if endpoint and num > 1:
        values = where(index == float(num - 1), float(stop), values)  # the end is exact
    return place(astype(values, target), device)


@function
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DTypeLike | None = None,
    device: str | Device | None = None,
) -> Tensor:
    """Ones on the k-th diagonal of a matrix, zeros elsewhere."""
    n_cols = n_rows if n_cols is None else n_cols
    rows, cols = map(iota, normal_shape("eye", (n_rows, n_cols)))
    return place(astype(expand_dims(rows, axis=1) + k == cols, DEFAULT_FLOAT if dtype is None else dtype), device)


def _triangle(x: ArrayLike, k: int, name: str, upper: bool) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 2:
        raise UserError(name, f"two or more dimensions are required, got shape {x.shape}.")
    rows, cols = expand_dims(iota(x.shape[-2]), axis=1), iota(x.shape[-1])
    return where(cols - rows >= k if upper else cols - rows <= k, x, number(0, x.dtype))


@function
def tril(x: ArrayLike, /, *, k: int = 0) -> Tensor:
    """The lower triangle of each matrix, zeros above the k-th diagonal."""
    return _triangle(x, k, "tril", upper=False)


@function
def triu(x: ArrayLike, /, *, k: int = 0) -> Tensor:
    """The upper triangle of each matrix, zeros below the k-th diagonal."""
    return _triangle(x, k, "triu", upper=True)


@function
def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Tensor]:
    """The coordinates of a grid from the coordinates of its axes.

    >>> [m.shape for m in meshgrid(arange(3), arange(2))]
    [(2, 3), (2, 3)]
    """
    axes = [as_tensor(a) for a in arrays]
    if indexing not in ("xy", "ij"):
        raise UserError("meshgrid", f"indexing must be 'xy' or 'ij', got {indexing!r}.")
    if any(a.ndim > 1 for a in axes) or len({a.dtype for a in axes}) > 1:
        raise UserError("meshgrid", "vectors of one dtype are required.")
    order = list(range(len(axes)))
    if indexing == "xy" and len(axes) > 1:
        order[0], order[1] = 1, 0
    shape = [1] * len(axes)
    for i, a in enumerate(axes):
        shape[order[i]] = a.size
    return [
        broadcast_to(reshape(a, [a.size if j == order[i] else 1 for j in range(len(axes))]), shape)
        for i, a in enumerate(axes)
    ]


@function
def one_hot(index: ArrayLike, classes: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """A vector for each index: 1 at the index, 0 elsewhere (all 0 for an index out of range).

    >>> one_hot(as_tensor([2, 0]), 3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    index = as_tensor(index)
    if not index.dtype.is_integer:
        raise UserError("one_hot", f"integer indices are required, got {index.dtype.name}. Use astype() first.")
    classes = whole("one_hot", "number of classes", classes)
    places = astype(index, int64) if index.dtype.bits < 64 else index  # small integers may not reach all classes
    return astype(
        expand_dims(places, axis=-1) == astype(iota(classes), places.dtype), DEFAULT_FLOAT if dtype is None else dtype
    )


@function
def from_dlpack(x: Any, /, *, device: str | Device | None = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of another library's array, on the CPU or on a GPU. Do not write to that array afterwards.

    The tensor is on the device of the array; another `device` takes a copy. On GPUs, arrays that are not contiguous are copied there. With
    `copy=False` it is an error where a copy is needed, with `copy=True` the memory is never shared.

    >>> import numpy as np
    >>> from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=copy)
    home = holding_accelerator("from_dlpack", x)
    if home is not None:
        return asarray(imported("from_dlpack", home, x, copy, protect=False), device=device, copy=copy)
    array = from_capsule("from_dlpack", x, copy)
    target = find_device("cpu" if device is None and find_device().is_accelerator else device)
    if copy is False and target.is_accelerator:
        raise UserError("from_dlpack", f"copy=False, but a copy is needed to move an array of the host to {target}.")
    return asarray(array, device=target, copy=bool(copy))
