"""The data movement primitives (reshape, permute, pad, slice ...) and functions composed of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..dtypes import DTypeLike, as_dtype, float32, promote
from ..errors import UserError
from ..graph.node import CONST, OPS, Node, Op, Shape, Type
from ..tensor import ArrayLike, Axis, Tensor, as_tensor, emit, function, number
from .declare import (
    Sample,
    Wrong,
    as_ints,
    broadcast_shape,
    expand_to,
    filled_like,
    normal_axes,
    normal_axis,
    normal_shape,
    whole,
)
from .elementwise import astype

# --- reshape -------------------------------------------------------------------------------------------------------------


def _reshape_infer(x: Node, shape: Shape) -> Type:
    if math.prod(shape) != math.prod(x.shape):
        raise UserError("reshape", f"shape {x.shape} has {math.prod(x.shape)} elements, which do not fill {shape}.")
    return Type(shape, x.dtype)


_RESHAPE = Op(
    "reshape", "move", _reshape_infer, np.reshape, lambda g, y, x, shape: (reshape(g, x.shape),), ("shape",), 1,
    samples=lambda rng: (
        Sample([rng.normal(size=a)], (b,)) for a, b in [((), (1, 1)), ((6,), (2, 3)), ((0, 3), (0,)), ((2, 1, 4), (8,))]
    ),
    errors=(
        Wrong(lambda: reshape(number(0.0, float32, (2, 3)), (4,)), "[reshape] shape (2, 3) has 6 elements, which do not fill (4,)"),
        Wrong(lambda: reshape(number(0.0, float32, (2, 3)), (-1, -1)), "[reshape] only one size can be -1"),
    ),
    kernel="view",
)  # fmt: skip


@function
def reshape(x: ArrayLike, /, shape: int | Sequence[int], *, copy: bool | None = None) -> Tensor:
    """The same elements, in the same order, in another shape. One size may be -1: it is inferred.

    >>> reshape(as_tensor([1, 2, 3, 4]), (2, -1)).shape
    (2, 2)
    """
    x = as_tensor(x)
    sizes = tuple(int(n.__index__()) for n in (shape if isinstance(shape, Iterable) else (shape,)))
    if sizes.count(-1) > 1:
        raise UserError("reshape", f"only one size can be -1, got {sizes}.")
    if -1 in sizes:
        known = math.prod(n for n in sizes if n != -1)
        if known == 0 or x.size % known:
            raise UserError("reshape", f"{x.size} elements cannot be put into {sizes}.")
        sizes = tuple(x.size // known if n == -1 else n for n in sizes)
    sizes = normal_shape("reshape", sizes)
    if x.node.op is CONST and math.prod(sizes) == x.size:
        return filled_like(x, sizes)
    return x if sizes == x.shape else emit(_RESHAPE, (x,), (sizes,))


@function
def expand_dims(x: ArrayLike, /, axis: int | Sequence[int] = 0) -> Tensor:
    """A new dimension of size 1 at the axis (counted in the result)."""
    x = as_tensor(x)
    given = list(axis) if isinstance(axis, Iterable) else [axis]
    axes = normal_axes("expand_dims", given, x.ndim + len(given))
    sizes = list(x.shape)
    for a in axes:
        sizes.insert(a, 1)
    return reshape(x, sizes)


@function
def squeeze(x: ArrayLike, /, axis: int | Sequence[int]) -> Tensor:
    """Remove the given dimensions, which must have size 1."""
    x = as_tensor(x)
    axes = normal_axes("squeeze", axis, x.ndim)
    for a in axes:
        if x.shape[a] != 1:
            raise UserError("squeeze", f"axis {a} has size {x.shape[a]}; only dimensions of size 1 can go.")
    return reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


@function
def flatten(x: ArrayLike, start: int = 0) -> Tensor:
    """The dimensions from `start` on as one."""
    x = as_tensor(x)
    start = normal_axis("flatten", start, max(x.ndim, 1))
    return reshape(x, (*x.shape[:start], math.prod(x.shape[start:])))


# --- permute -------------------------------------------------------------------------------------------------------------


def _permute_infer(x: Node, axes: tuple[int, ...]) -> Type:
    if sorted(axes) != list(range(len(x.shape))):
        raise UserError("permute_dims", f"each of the {len(x.shape)} axes must be named once, got {axes}.")
    return Type(tuple(x.shape[a] for a in axes), x.dtype)


_PERMUTE = Op(
    "permute", "move", _permute_infer, np.transpose,
    lambda g, y, x, axes: (permute_dims(g, [axes.index(i) for i in range(len(axes))]),), ("axes",), 1,
    samples=lambda rng: (
        Sample([rng.normal(size=s)], (a,)) for s, a in [((), ()), ((2, 3), (1, 0)), ((2, 0, 4), (2, 0, 1))]
    ),
    errors=(Wrong(lambda: permute_dims(number(0.0, float32, (2, 3)), (0, 0)), "[permute_dims] each of the 2 axes must be named once, got (0, 0)"),),
    kernel="view",
)  # fmt: skip


@function
def permute_dims(x: ArrayLike, /, axes: Sequence[int]) -> Tensor:
    """The dimensions in another order.

    >>> permute_dims(as_tensor([[1, 2, 3]]), (1, 0)).shape
    (3, 1)
    """
    x = as_tensor(x)
    order = tuple(normal_axis("permute_dims", a, x.ndim) for a in axes)
    return x if order == tuple(range(x.ndim)) else emit(_PERMUTE, (x,), (order,))


@function
def matrix_transpose(x: ArrayLike, /) -> Tensor:
    """The matrices in the last two dimensions, transposed."""
    x = as_tensor(x)
    if x.ndim < 2:
        raise UserError("matrix_transpose", f"two or more dimensions are required, got shape {x.shape}.")
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@function
def transpose(x: ArrayLike, axis1: int = -2, axis2: int = -1) -> Tensor:
    """Swap two dimensions."""
    x = as_tensor(x)
    order = list(range(x.ndim))
    a, b = normal_axis("transpose", axis1, x.ndim), normal_axis("transpose", axis2, x.ndim)
    order[a], order[b] = b, a
    return permute_dims(x, order)


@function
def moveaxis(x: ArrayLike, source: int | Sequence[int], destination: int | Sequence[int], /) -> Tensor:
    """Move dimensions to other positions; the others keep their order."""
    x = as_tensor(x)
    sources = [normal_axis("moveaxis", a, x.ndim) for a in (source if isinstance(source, Iterable) else [source])]
    targets = [
        normal_axis("moveaxis", a, x.ndim)
        for a in (destination if isinstance(destination, Iterable) else [destination])
    ]
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise UserError("moveaxis", f"as many different places as axes are required, got {source} and {destination}.")
    order = [i for i in range(x.ndim) if i not in sources]
    for target, origin in sorted(zip(targets, sources, strict=True)):
        order.insert(target, origin)
    return permute_dims(x, order)


# --- expand --------------------------------------------------------------------------------------------------------------


def _expand_infer(x: Node, shape: Shape) -> Type:
    inner = shape[len(shape) - len(x.shape) :]
    if len(shape) < len(x.shape) or any(a not in (1, b) for a, b in zip(x.shape, inner, strict=True)):
        raise UserError("broadcast_to", f"shape {x.shape} cannot be broadcast to {shape}.")
    return Type(shape, x.dtype)


def _expand_vjp(g: Tensor, y: Tensor, x: Tensor, shape: Shape) -> tuple[Tensor]:
    new = len(shape) - x.ndim
    spread = [i for i in range(len(shape)) if i < new or (x.shape[i - new] == 1 and shape[i] != 1)]
    summed = (
        emit(OPS["sum"], (g,), (tuple(spread),)) if spread else g
    )  # looked up by name: sums are defined in a module above this one
    return (reshape(summed, x.shape),)


_EXPAND = Op(
    "expand", "move", _expand_infer, np.broadcast_to, _expand_vjp, ("shape",), 1,
    samples=lambda rng: (
        Sample([rng.normal(size=a)], (b,)) for a, b in [((), (2, 3)), ((1, 3), (4, 2, 3)), ((1,), (0,)), ((2, 1), (2, 5))]
    ),
    errors=(Wrong(lambda: broadcast_to(number(0.0, float32, (2, 3)), (2, 4)), "[broadcast_to] shape (2, 3) cannot be broadcast to (2, 4)"),),
    kernel="view",
)  # fmt: skip


@function
def broadcast_to(x: ArrayLike, /, shape: Sequence[int]) -> Tensor:
    """Broadcast a tensor to a shape.

    >>> broadcast_to(as_tensor([1, 2]), (2, 2)).tolist()
    [[1, 2], [1, 2]]
    """
    x = as_tensor(x)
    target = normal_shape("broadcast_to", shape)
    _expand_infer(x.node, target)
    return expand_to(x, target)


@function
def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """Broadcast tensors to their common shape."""
    tensors = [as_tensor(a) for a in arrays]
    shape = broadcast_shape("broadcast_arrays", *(t.shape for t in tensors))
    return [expand_to(t, shape) for t in tensors]


# --- pad and slice: each is the other's derivative -------------------------------------------------------------------------

Widths = tuple[tuple[int, int, int], ...]


def _inner(shape: Shape, widths: Widths) -> tuple[slice, ...]:
    """The slices of the original elements in the padded tensor."""
    facts = zip(shape, widths, strict=True)
    return tuple(slice(lo, lo + max(n + (n - 1) * gap, 0), gap + 1) for n, (lo, _, gap) in facts)


def _padded(shape: Shape, widths: Widths) -> Shape:
    return tuple(part.stop + hi for part, (_, hi, _) in zip(_inner(shape, widths), widths, strict=True))


def _pad_infer(x: Node, widths: Widths, value: Any) -> Type:
    if len(widths) != len(x.shape) or any(len(w) != 3 or min(w) < 0 for w in widths):
        raise UserError("pad", f"widths of 0 or more for each of {len(x.shape)} dimensions are required, got {widths}.")
    CONST.infer(value, x.dtype, ())  # the value must be one that a constant can have
    return Type(_padded(x.shape, widths), x.dtype)


def _pad(x: np.ndarray, widths: Widths, value: Any) -> np.ndarray:
    filler = np.asarray(float(value) if isinstance(value, str) else value).astype(x.dtype)
    result = np.full(_padded(x.shape, widths), filler)
    result[_inner(x.shape, widths)] = x
    return result


def _pad_vjp(g: Tensor, y: Tensor, x: Tensor, widths: Widths, value: Any) -> tuple[Tensor]:
    inner = _inner(x.shape, widths)
    return (slice_(g, *(tuple(getattr(part, end) for part in inner) for end in ("start", "stop", "step"))),)


_PAD = Op(
    "pad", "move", _pad_infer, _pad, _pad_vjp, ("widths", "value"), 1,
    samples=lambda rng: (
        Sample([rng.normal(size=s)], (w, 0.0)) for s, w in [
            ((), ()), ((3,), ((1, 2, 0),)), ((2, 3), ((0, 1, 2), (3, 0, 1))), ((0,), ((2, 1, 1),)), ((4,), ((0, 0, 0),)),
        ]
    ),
    errors=(Wrong(lambda: pad(number(0.0, float32, (3,)), ((-1, 0),)), "[pad] widths of 0 or more for each of 1 dimensions are required"),),
    kernel="loop",
)  # fmt: skip


def pad_constant(x: Tensor, widths: Widths, value: float | int = 0) -> Tensor:
    """Pad with `value` before, behind and between the elements: (before, behind, gap) per dimension."""
    if all(w == (0, 0, 0) for w in widths):
        return x
    filler = number(value, x.dtype).node.params[0]  # -0.0, nan and infinities have their own text form
    return emit(_PAD, (x,), (tuple(tuple(w) for w in widths), filler))


def pad_axis(x: Tensor, axis: int, before: int, behind: int, value: float | int = 0) -> Tensor:
    """Pad along one axis."""
    widths = [(0, 0, 0)] * x.ndim
    widths[axis] = (before, behind, 0)
    return pad_constant(x, tuple(widths), value)


@function
def pad(x: ArrayLike, widths: Any, mode: str = "constant", value: float = 0) -> Tensor:
    """Pad each dimension by (before, behind); the mode is constant, edge, reflect or wrap.

    >>> pad(as_tensor([1, 2, 3]), ((1, 2),)).tolist()
    [0, 1, 2, 3, 0, 0]
    >>> pad(as_tensor([1, 2, 3]), ((2, 1),), mode="reflect").tolist()
    [3, 2, 1, 2, 3, 2]
    """
    x = as_tensor(x)
    given = list(widths) if isinstance(widths, Iterable) else [widths] * x.ndim
    pairs = [as_ints(w) if isinstance(w, Iterable) else as_ints([w]) * 2 for w in given]
    if len(pairs) != x.ndim or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise UserError("pad", f"widths of 0 or more for each of {x.ndim} dimensions are required, got {widths}.")
    if mode == "constant":
        return pad_constant(x, tuple((lo, hi, 0) for lo, hi in pairs), value)
    if mode not in _BORDERS:
        raise UserError("pad", f"the mode must be constant, {', '.join(_BORDERS)}, got {mode!r}.")
    for axis, (lo, hi) in enumerate(pairs):
        if lo or hi:
            x = _border(x, axis, lo, hi, mode)
    return x


_BORDERS = ("edge", "reflect", "wrap")


def _border(x: Tensor, axis: int, lo: int, hi: int, mode: str) -> Tensor:
    n = x.shape[axis]
    most = {"edge": n and math.inf, "reflect": n - 1, "wrap": n}[mode]
    if max(lo, hi) > most:
        raise UserError("pad", f"mode {mode!r} can add at most {most} to axis {axis} of size {n}, got {max(lo, hi)}.")

    def part(start: int, stop: int) -> Tensor:
        return cut(x, axis, start, stop)

    if mode == "edge":
        before, behind = ((*x.shape[:axis], k, *x.shape[axis + 1 :]) for k in (lo, hi))
        return concat([broadcast_to(part(0, 1), before), x, broadcast_to(part(n - 1, n), behind)], axis=axis)
    if mode == "reflect":
        return concat([flip(part(1, lo + 1), axis=axis), x, flip(part(n - 1 - hi, n - 1), axis=axis)], axis=axis)
    return concat([part(n - lo, n), x, part(0, hi)], axis=axis)


def _slice_infer(x: Node, starts: Shape, stops: Shape, steps: Shape) -> Type:
    if not len(starts) == len(stops) == len(steps) == len(x.shape):
        raise UserError("slice", f"a range for each of {len(x.shape)} dimensions is required.")
    for n, start, stop, step in zip(x.shape, starts, stops, steps, strict=True):
        if not 0 <= start <= stop <= n or step < 1:
            raise UserError("slice", f"the range {start}:{stop}:{step} is not inside a dimension of size {n}.")
    return Type(tuple(-(-(b - a) // s) for a, b, s in zip(starts, stops, steps, strict=True)), x.dtype)


def _slice_vjp(g: Tensor, y: Tensor, x: Tensor, starts: Shape, stops: Shape, steps: Shape) -> tuple[Tensor]:
    return (pad_constant(g, surroundings(x.shape, g.shape, starts, steps)),)


def surroundings(shape: Shape, counts: Shape, starts: Shape, steps: Shape) -> Widths:
    """The padding that inverts a slice: it puts the elements back at their positions."""
    facts = zip(shape, counts, starts, steps, strict=True)
    return tuple((a, n - a - (m - 1) * s - 1, s - 1) if m else (n, 0, 0) for n, m, a, s in facts)


_SLICE = Op(
    "slice", "move", _slice_infer,
    lambda x, starts, stops, steps: x[tuple(map(slice, starts, stops, steps))], _slice_vjp, ("starts", "stops", "steps"), 1,
    samples=lambda rng: (
        Sample([rng.normal(size=s)], p) for s, p in [
            ((), ((), (), ())), ((7,), ((1,), (6,), (2,))), ((3, 4), ((0, 2), (3, 2), (1, 1))), ((2, 5), ((1, 0), (2, 5), (3, 4))),
        ]
    ),
    errors=(Wrong(lambda: slice_(number(0.0, float32, (3,)), (1,), (5,), (1,)), "[slice] the range 1:5:1 is not inside a dimension of size 3"),),
    kernel="view",
)  # fmt: skip


def slice_(x: Tensor, starts: Shape, stops: Shape, steps: Shape) -> Tensor:
    """A regular range of elements in each dimension."""
    if all(a == 0 and b == n and s == 1 for a, b, s, n in zip(starts, stops, steps, x.shape, strict=True)):
        return x
    return emit(_SLICE, (x,), (starts, stops, steps))


def cut(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """The elements from `start` to `stop` along one axis."""
    starts, stops = [0] * x.ndim, list(x.shape)
    starts[axis], stops[axis] = start, stop
    return slice_(x, tuple(starts), tuple(stops), (1,) * x.ndim)


# --- flip and concat -----------------------------------------------------------------------------------------------------


def _flip_infer(x: Node, axes: tuple[int, ...]) -> Type:
    if axes != normal_axes("flip", axes, len(x.shape)):
        raise UserError("flip", f"axes counted from the front, in order, are required, got {axes}.")
    return x.type


_FLIP = Op(
    "flip", "move", _flip_infer, np.flip, lambda g, y, x, axes: (flip(g, axis=axes),), ("axes",), 1,
    samples=lambda rng: (Sample([rng.normal(size=s)], (a,)) for s, a in [((4,), (0,)), ((2, 3), (0, 1)), ((0, 2), (1,))]),
    errors=(Wrong(lambda: flip(number(0.0, float32, (3,)), axis=2), "[flip] axis 2 does not exist in a tensor of 1 dimensions"),),
    kernel="view",
)  # fmt: skip


@function
def flip(x: ArrayLike, /, *, axis: Axis = None) -> Tensor:
    """The elements in reverse order along axes."""
    x = as_tensor(x)
    axes = normal_axes("flip", axis, x.ndim)
    return emit(_FLIP, (x,), (axes,)) if axes else x


def _concat_infer(inputs: tuple[Node, ...], axis: int) -> Type:
    first = inputs[0]
    if not 0 <= axis < len(first.shape):
        raise UserError("concat", f"axis {axis} does not exist in a tensor of {len(first.shape)} dimensions.")
    for other in inputs[1:]:
        same = len(other.shape) == len(first.shape) and all(
            a == b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis
        )
        if not same or other.dtype is not first.dtype:
            raise UserError("concat", f"{first.type} and {other.type} differ in more than axis {axis}.")
    total = 0
    for i in inputs:
        total += i.shape[axis]
    return Type((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def _concat_vjp(g: Tensor, y: Tensor, inputs: tuple[Tensor, ...], axis: int) -> tuple[Tensor, ...]:
    parts, start = [], 0
    for x in inputs:
        parts.append(cut(g, axis, start, start + x.shape[axis]))
        start += x.shape[axis]
    return tuple(parts)


def _concat_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield Sample([rng.normal(size=3), rng.normal(size=0), rng.normal(size=2)], (0,))
    yield Sample([rng.normal(size=(2, 3)), rng.normal(size=(2, 1))], (1,))
    yield Sample([rng.normal(size=(1, 2))], (0,))


_CONCAT = Op(
    "concat", "move", _concat_infer, lambda arrays, axis: np.concatenate(arrays, axis), _concat_vjp, ("axis",), None,
    samples=_concat_samples,
    errors=(
        Wrong(lambda: concat([number(0.0, float32, (2, 3)), number(0.0, float32, (3, 3))], axis=1), "[concat] float32[2, 3] and float32[3, 3] differ in more than axis 1"),
        Wrong(lambda: concat([]), "[concat] at least one tensor is required"),
    ),
    kernel="loop",
)  # fmt: skip


@function
def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """Tensors joined along an existing axis; None flattens them first.

    >>> concat([as_tensor([1, 2]), as_tensor([3])]).tolist()
    [1, 2, 3]
    """
    tensors = same_dtype("concat", arrays)
    if axis is None:
        tensors, axis = [flatten(t) for t in tensors], 0
    axis = normal_axis("concat", axis, tensors[0].ndim)
    return tensors[0] if len(tensors) == 1 else emit(_CONCAT, tuple(tensors), (axis,))


def same_dtype(name: str, arrays: Sequence[Any], dtype: DTypeLike | None = None) -> list[Tensor]:
    """Several operands as tensors of one dtype: the given one, or the one that they promote to."""
    if not len(arrays):
        raise UserError(name, "at least one tensor is required, got none.")
    tensors = [as_tensor(a) for a in arrays]
    wanted = functools.reduce(promote, (t.dtype for t in tensors)) if dtype is None else as_dtype(dtype, name)
    return [astype(t, wanted) for t in tensors]


@function
def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis.

    >>> stack([as_tensor([1, 2]), as_tensor([3, 4])]).shape
    (2, 2)
    """
    tensors = same_dtype("stack", arrays)
    if any(t.shape != tensors[0].shape for t in tensors):
        raise UserError("stack", f"tensors of one shape are required, got {', '.join(str(t.shape) for t in tensors)}.")
    axis = normal_axis("stack", axis, tensors[0].ndim + 1)
    return concat([expand_dims(t, axis=axis) for t in tensors], axis=axis)


@function
def unstack(x: ArrayLike, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """The tensors along an axis, each without it."""
    x = as_tensor(x)
    axis = normal_axis("unstack", axis, x.ndim)
    return tuple(squeeze(cut(x, axis, i, i + 1), axis) for i in range(x.shape[axis]))


@function
def split(x: ArrayLike, parts: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """Split into a number of equal parts, or into parts of the given sizes.

    >>> [p.tolist() for p in split(as_tensor([1, 2, 3, 4, 5]), [2, 3])]
    [[1, 2], [3, 4, 5]]
    """
    x = as_tensor(x)
    axis = normal_axis("split", axis, x.ndim)
    n = x.shape[axis]
    if not isinstance(parts, Iterable):
        count = whole("split", "number of parts", parts, least=1)
        if n % count:
            raise UserError(
                "split", f"axis {axis} of size {n} cannot be divided into {count} equal parts. Give a list of sizes."
            )
        parts = [n // count] * count
    sizes = normal_shape("split", parts)
    if math.fsum(sizes) != n:
        raise UserError("split", f"the sizes {sizes} do not add up to {n}, the size of axis {axis}.")
    ends = np.cumsum(sizes).tolist()
    return tuple(cut(x, axis, end - size, end) for size, end in zip(sizes, ends, strict=True))


@function
def roll(x: ArrayLike, /, shift: int | Sequence[int], *, axis: Axis = None) -> Tensor:
    """Shift the elements along axes, with wrap-around.

    >>> roll(as_tensor([1, 2, 3, 4]), 1).tolist()
    [4, 1, 2, 3]
    """
    x = as_tensor(x)
    if axis is None:
        return reshape(roll(flatten(x), shift, axis=0), x.shape)
    axes = list(axis) if isinstance(axis, Iterable) else [axis]
    shifts = list(shift) if isinstance(shift, Iterable) else [shift] * len(axes)
    if len(shifts) != len(axes) or any(isinstance(s, bool) or not hasattr(s, "__index__") for s in shifts):
        raise UserError("roll", f"as many ints to shift by as axes are required, got {shift!r} and {axis!r}.")
    for s, a in zip(shifts, axes, strict=True):
        a = normal_axis("roll", a, x.ndim)
        n = x.shape[a]
        by = int(s.__index__()) % n if n else 0
        x = concat([cut(x, a, n - by, n), cut(x, a, 0, n - by)], axis=a) if by else x
    return x


@function
def tile(x: ArrayLike, repetitions: Sequence[int], /) -> Tensor:
    """Repeat the tensor along each dimension.

    >>> tile(as_tensor([1, 2]), (2, 2)).tolist()
    [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = as_tensor(x)
    times = normal_shape("tile", repetitions)
    ndim = max(len(times), x.ndim)
    times = (1,) * (ndim - len(times)) + times
    sizes = (1,) * (ndim - x.ndim) + x.shape
    pairs = [n for t, s in zip(times, sizes, strict=True) for n in (t, s)]
    spread = broadcast_to(reshape(x, [n for s in sizes for n in (1, s)]), pairs)
    return reshape(spread, [t * s for t, s in zip(times, sizes, strict=True)])
