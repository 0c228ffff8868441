"""Shapes: what asks for them, what changes them, and constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import UserError
from ...ops.creation import eye, tril, triu
from ...ops.elementwise import where
from ...ops.movement import broadcast_to, concat, expand_dims, pad, permute_dims, reshape, squeeze, tile
from ...tensor import Tensor
from ..registry import OnnxCall, op
from ..values import Value, frozen, is_known, known, tensor, weft_dtype

Ints = tuple[int, ...]


@op("Identity", raw=True)
def identity(x: Value) -> Value:
    return x


@op("Shape", raw=True)
def shape_of(x: Value, *, start: int = 0, end: int | None = None) -> np.ndarray:
    return np.array(x.shape[slice(start, end)], np.int64)


@op("Size", raw=True)
def size_of(x: Value) -> np.ndarray:
    return np.array(int(np.prod(x.shape, dtype=np.int64)), np.int64)


@op("Constant", raw=True)
def constant(
    *,
    value: np.ndarray | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: Ints | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> np.ndarray:
    if value is not None:
        return value
    for given, dtype in (
        (value_float, np.float32), (value_floats, np.float32), (value_int, np.int64), (value_ints, np.int64),
        (value_string, object), (value_strings, object),
    ):  # fmt: skip
        if given is not None:
            return frozen(np.array(given, dtype))
    raise UserError("onnx", "a constant needs a value.")


@op("ConstantOfShape", host=("shape",))
def constant_of_shape(shape: np.ndarray, *, value: np.ndarray | None = None) -> Tensor:
    value = np.zeros(1, np.float32) if value is None else value
    return broadcast_to(tensor(value.reshape(())), shape.tolist())


@op("Reshape", host=("shape",))
def reshaped(x: Tensor, shape: np.ndarray, *, allowzero: int = 0) -> Tensor:
    """A size of 0 stands for that of the input, unless `allowzero` is set; one size may be -1."""
    wanted = [int(n) for n in shape.ravel()]
    if not allowzero:
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    return reshape(x, wanted)


@op("Flatten")
def flattened(x: Tensor, *, axis: int = 1) -> Tensor:
    split = axis + x.ndim if axis < 0 else axis
    return reshape(x, [int(np.prod(part, dtype=np.int64)) for part in (x.shape[:split], x.shape[split:])])


@op("Squeeze")
def squeezed_by_attribute(x: Tensor, *, axes: Ints | None = None) -> Tensor:
    found = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else list(axes)
    return squeeze(x, found) if found else x


@op("Squeeze", since=13, host=("axes",))
def squeezed_by_input(x: Tensor, axes: np.ndarray | None = None) -> Tensor:
    return squeezed_by_attribute(x, axes=None if axes is None else tuple(axes.ravel().tolist()))


@op("Unsqueeze")
def unsqueezed_by_attribute(x: Tensor, *, axes: Ints) -> Tensor:
    return expand_dims(x, axis=list(axes)) if axes else x


@op("Unsqueeze", since=13, host=("axes",))
def unsqueezed_by_input(x: Tensor, axes: np.ndarray) -> Tensor:
    return unsqueezed_by_attribute(x, axes=tuple(axes.ravel().tolist()))


@op("Transpose")
def transposed(x: Tensor, *, perm: Ints | None = None) -> Tensor:
    return permute_dims(x, tuple(reversed(range(x.ndim))) if perm is None else perm)


@op("Concat", raw=True)
def concatenated(*xs: Value, axis: int = 1) -> Value:
    if all(map(is_known, xs)):
        return frozen(np.concatenate(xs, axis))
    return concat([tensor(x) for x in xs], axis=axis)


def cut_sizes(size: int, parts: int) -> list[int]:
    """Equal parts, of which the last may be smaller."""
    each = -(-size // parts)
    return [max(0, min(each, size - i * each)) for i in range(parts)]


def cut(x: Tensor, sizes: Sequence[int], axis: int) -> tuple[Tensor, ...]:
    if sum(sizes) != x.shape[axis] or any(n < 0 for n in sizes):
        raise UserError("onnx", f"parts that add up to {x.shape[axis]} are required, got {list(sizes)}.")
    starts = np.cumsum([0, *sizes]).tolist()
    front = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*front, slice(a, a + n))] for a, n in zip(starts, sizes, strict=False))


@op("Split")
def split_by_attribute(x: Tensor, *, axis: int = 0, split: Ints | None = None, call: OnnxCall) -> tuple[Tensor, ...]:
    return cut(x, cut_sizes(x.shape[axis], call.outputs) if split is None else split, axis)


@op("Split", since=13, host=("split",))
def split_by_input(
    x: Tensor, split: np.ndarray | None = None, *, axis: int = 0, num_outputs: int | None = None, call: OnnxCall
) -> tuple[Tensor, ...]:
    sizes = cut_sizes(x.shape[axis], num_outputs or call.outputs) if split is None else split.tolist()
    return cut(x, sizes, axis)


@op("Expand", host=("shape",))
def expanded(x: Tensor, shape: np.ndarray) -> Tensor:
    return broadcast_to(x, np.broadcast_shapes(x.shape, tuple(shape.tolist())))


@op("Tile", host=("repeats",))
def tiled(x: Tensor, repeats: np.ndarray) -> Tensor:
    return tile(x, repeats.tolist())


@op("Slice")
def sliced_by_attributes(x: Tensor, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Tensor:
    found = range(len(starts)) if axes is None else axes
    return _sliced(x, starts, ends, found, [1] * len(starts))


@op("Slice", since=10, host=("starts", "ends", "axes", "steps"))
def sliced_by_inputs(
    x: Tensor, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None = None, steps: np.ndarray | None = None
) -> Tensor:
    found = list(range(starts.size)) if axes is None else axes.tolist()
    return _sliced(x, starts.tolist(), ends.tolist(), found, [1] * starts.size if steps is None else steps.tolist())


def _sliced(x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int], steps: Sequence[int]) -> Tensor:
    key = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        # Unlike in Python, a start before the first element is the first one, backwards too.
        key[axis] = slice(max(start, -x.shape[axis]) if step < 0 else start, end, step)
    return x[tuple(key)] if key else x


@op("Pad")
def padded_by_attributes(x: Tensor, *, pads: Ints, mode: str = "constant", value: float = 0.0) -> Tensor:
    return _padded(x, list(pads), list(range(x.ndim)), mode, value)


@op("Pad", since=11, host=("pads", "value", "axes"))
def padded_by_inputs(
    x: Tensor,
    pads: np.ndarray,
    value: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    found = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes.tolist()]
    return _padded(x, pads.tolist(), found, mode, 0 if value is None else value.reshape(()).item())


def _padded(x: Tensor, pads: list[int], axes: list[int], mode: str, value: Any) -> Tensor:
    """Negative widths cut elements off."""
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        widths[axis] = (pads[i], pads[i + len(axes)])
    key = tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    inside = x[key] if x.ndim else x
    outside = [(max(a, 0), max(b, 0)) for a, b in widths]
    if mode != "constant":
        return pad(inside, outside, mode)
    if x.dtype.name == "bool":
        return pad(inside.astype("uint8"), outside, "constant", int(value)).astype("bool")
    return pad(inside, outside, "constant", value)


@op("Range", raw=True)
def numbers(start: Value, limit: Value, delta: Value, *, stash_type: int = 1) -> np.ndarray:
    """start, start + delta, ... below the limit."""
    first, last, step = (known(v, "a bound of Range").reshape(()) for v in (start, limit, delta))
    dtype = first.dtype
    wide = np.float32 if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
    a, b, d = (v.astype(wide) for v in (first, last, step))
    count = max(int(np.ceil((b.astype(np.float64) - a.astype(np.float64)) / d.astype(np.float64))), 0)
    return frozen((a + np.arange(count).astype(wide) * d).astype(dtype))


@op("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    return eye(x.shape[0], x.shape[1], k=k, dtype=x.dtype if dtype is None else weft_dtype(dtype))


@op("Trilu", host=("k",))
def triangle(x: Tensor, k: np.ndarray | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(k.item())
    return triu(x, k=diagonal) if upper else tril(x, k=diagonal)


@op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b, rest = blocksize, c // blocksize**2
    if mode == "DCR":
        y = permute_dims(reshape(x, (n, b, b, rest, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = permute_dims(reshape(x, (n, rest, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return reshape(y, (n, rest, h * b, w * b))


@op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    blocks = reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return reshape(permute_dims(blocks, order), (n, c * b * b, h // b, w // b))


@op("OneHot", host=("depth",))
def one_hot(indices: Tensor, depth: np.ndarray, values: Tensor, *, axis: int = -1) -> Tensor:
    """values[1] at the index, values[0] elsewhere; negative indices count from the end."""
    count = int(depth.reshape(()).item())
    place = axis % (indices.ndim + 1)
    index = expand_dims(indices.astype("int64"), axis=place)
    index = where(index < 0, index + count, index)
    along = reshape(tensor(np.arange(count)), [-1 if i == place else 1 for i in range(indices.ndim + 1)])
    return where(index == along, values[1], values[0])
