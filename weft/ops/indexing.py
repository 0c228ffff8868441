"""Indexed reads and writes: `gather` and `scatter`, each the other's derivative, and functions composed of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from ..dtypes import int64
from ..errors import RunError, UserError
from ..graph.node import Node, Op, Shape, Type
from ..tensor import ArrayLike, Tensor, as_tensor, emit, function
from .creation import iota, zeros, zeros_like
from .declare import Sample, Wrong, accept, broadcast_shape, expand_to, normal_axis
from .elementwise import where
from .movement import moveaxis, reshape

# --- gather and scatter --------------------------------------------------------------------------------------------------

Axes = tuple[int, ...]


def _gather_infer(inputs: tuple[Node, ...], axes: Axes, wraps: bool) -> Type:
    x, *indices = inputs
    return Type(_selected("gather", x, indices, axes), x.dtype)


def _selected(name: str, x: Node, indices: Sequence[Node], axes: Axes) -> Shape:
    """The shape of a selection: the shape of the indices, then the axes without an index."""
    if not indices or len(indices) != len(axes) or len(set(axes)) != len(axes):
        raise UserError(name, f"one index tensor for each of the axes {axes} is required, got {len(indices)}.")
    for axis, index in zip(axes, indices, strict=True):
        accept(name, index.dtype, "integer")
        if axis != normal_axis(name, axis, len(x.shape)) or index.shape != indices[0].shape:
            raise UserError(name, f"axes counted from the front and indices of one shape are required, got {axes}.")
    return (*indices[0].shape, *(n for i, n in enumerate(x.shape) if i not in axes))


def checked(
    name: str, x: np.ndarray, indices: Sequence[np.ndarray], axes: Axes, wraps: bool = True
) -> tuple[np.ndarray, ...]:
    """The indices counted from the front."""
    for axis, index in zip(axes, indices, strict=True):
        size = x.shape[axis]
        least = -size if wraps else 0
        if index.size and (int(index.min()) < least or int(index.max()) >= size):
            worst = index.min() if int(index.min()) < least else index.max()
            raise RunError(name, f"index {worst} is out of range for axis {axis} of size {size}.")
    wide = [i.astype(np.int64) for i in indices]
    return tuple(np.where(i < 0, i + x.shape[a], i) for i, a in zip(wide, axes, strict=True))


def _gather(values: tuple[np.ndarray, ...], axes: Axes, wraps: bool) -> np.ndarray:
    x, *indices = values
    selected: np.ndarray = np.moveaxis(x, axes, range(len(axes)))[checked("gather", x, indices, axes, wraps)]
    return selected


def _gather_vjp(g: Tensor, y: Tensor, inputs: tuple[Tensor, ...], axes: Axes, wraps: bool) -> tuple[Tensor | None, ...]:
    x, *indices = inputs
    return (scatter(zeros_like(x), g, indices, axes, "add"), *[None] * len(indices))


def _gather_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, index, axes in _SELECTIONS:
        yield Sample([rng.normal(size=shape), *(rng.integers(-shape[a], shape[a], index) for a in axes)], (axes, True))


_SELECTIONS: list[tuple[Shape, Shape, Axes]] = [
    ((4,), (), (0,)), ((4, 3), (5,), (0,)), ((2, 3, 2), (2, 2), (1,)), ((3, 2), (0,), (1,)), ((3, 4, 2), (6,), (2, 0)),
]  # fmt: skip

_GATHER = Op(
    "gather", "index", _gather_infer, _gather, _gather_vjp, ("axes", "wraps"), None, samples=_gather_samples,
    errors=(
        Wrong(lambda: gather(zeros(3), [as_tensor([1.0])], (0,)), "[gather] an integer dtype is required, got float32"),
        Wrong(lambda: gather(zeros(3), [as_tensor([5])], (0,)).numpy(), "[gather] index 5 is out of range for axis 0 of size 3"),
        Wrong(lambda: gather(zeros(3), [as_tensor([-1])], (0,), wraps=False).numpy(), "[gather] index -1 is out of range for axis 0 of size 3"),
        Wrong(lambda: gather(zeros((3, 2)), [as_tensor([0])], (0, 1)), "[gather] one index tensor for each of the axes (0, 1) is required, got 1"),
    ),
    kernel="loop",
)  # fmt: skip


def gather(x: Tensor, indices: Sequence[Tensor], axes: Axes, wraps: bool = True) -> Tensor:
    """The elements at indices along some axes, with one index tensor per axis; with `wraps`, negative indices count from the end.

    The result has the axes of the indices first, then the axes of x that have no index.
    """
    return emit(_GATHER, (x, *indices), (axes, wraps))


def _scatter_infer(inputs: tuple[Node, ...], axes: Axes, how: str) -> Type:
    x, values, *indices = inputs
    expected = Type(_selected("scatter", x, indices, axes), x.dtype)
    if values.type != expected:
        raise UserError("scatter", f"values of type {expected} are required, got {values.type}.")
    if how not in ("set", "add"):
        raise UserError("scatter", f"the way to write must be 'set' or 'add', got {how!r}.")
    return x.type


def _scatter(inputs: tuple[np.ndarray, ...], axes: Axes, how: str) -> np.ndarray:
    x, values, *indices = inputs
    places = checked("scatter", x, indices, axes)
    front = np.moveaxis(x, axes, range(len(axes)))
    sizes, rest = front.shape[: len(axes)], front.shape[len(axes) :]
    result = front.reshape(prod(sizes), *rest).copy()
    flat = np.ravel_multi_index(places, sizes).ravel() if places[0].size else np.zeros(0, np.int64)
    rows = values.reshape(flat.size, *rest)
    if how == "add":
        np.add.at(result, flat, rows)
    else:
        last = (
            flat.size - 1 - np.unique(flat[::-1], return_index=True)[1]
        )  # of several writes to one position the last wins
        result[flat[last]] = rows[last]
    return np.moveaxis(result.reshape(front.shape), range(len(axes)), axes)


def _scatter_vjp(
    g: Tensor, y: Tensor, inputs: tuple[Tensor, ...], axes: Axes, how: str
) -> tuple[Tensor | Callable[[], Tensor] | None, ...]:
    x, values, *indices = inputs
    rest = [None] * len(indices)
    if how == "add":
        return (g, lambda: gather(g, indices, axes), *rest)
    return (
        lambda: scatter(g, zeros_like(values), indices, axes, "set"),
        lambda: where(_winners(x, values, indices, axes), gather(g, indices, axes), 0.0),
        *rest,
    )


def _winners(x: Tensor, values: Tensor, indices: list[Tensor], axes: Axes) -> Tensor:
    """A mask of the values that are not overwritten: of several writes to one position only the last remains."""
    order = reshape(iota(indices[0].size), indices[0].shape)
    table = zeros([x.shape[a] for a in axes], dtype=int64)
    front = tuple(range(len(axes)))
    survives = gather(scatter(table, order, indices, front, "set"), indices, front) == order
    return expand_to(reshape(survives, (*order.shape, *[1] * (values.ndim - order.ndim))), values.shape)


def _scatter_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for how in ("set", "add"):
        for shape, index, axes in _SELECTIONS:
            values = (*index, *(n for i, n in enumerate(shape) if i not in axes))
            indices = [rng.integers(-shape[a], shape[a], index) for a in axes]
            yield Sample([rng.normal(size=shape), rng.normal(size=values), *indices], (axes, how))


_SCATTER = Op(
    "scatter", "index", _scatter_infer, _scatter, _scatter_vjp, ("axes", "how"), None, True, samples=_scatter_samples,
    errors=(
        Wrong(lambda: scatter(zeros(3), zeros(2), [as_tensor([0])], (0,), "add"), "[scatter] values of type float32[1] are required, got float32[2]"),
        Wrong(lambda: scatter(zeros(3), zeros(1), [as_tensor([3])], (0,), "add").numpy(), "[scatter] index 3 is out of range for axis 0 of size 3"),
    ), own_kernels=True, updates_input=True,
)  # fmt: skip


def scatter(x: Tensor, values: Tensor, indices: Sequence[Tensor], axes: Axes, how: str) -> Tensor:
    """A copy of the tensor with values written ("set": the last of several wins) or added ("add") at the positions of `gather`."""
    return emit(_SCATTER, (x, values, *indices), (axes, how))


@function
def take(x: ArrayLike, indices: ArrayLike, /, *, axis: int | None = None) -> Tensor:
    """The elements (rows, ...) at indices along an axis; negative indices count from the end.

    >>> take(as_tensor([10, 20, 30]), as_tensor([2, 0, -1])).tolist()
    [30, 10, 30]
    """
    x, index = as_tensor(x), as_tensor(indices)
    if axis is None:
        if x.ndim != 1:
            raise UserError("take", f"an axis is required for {x.ndim} dimensions.")
        axis = 0
    axis = normal_axis("take", axis, x.ndim)
    accept("take", index.dtype, "integer")
    return placed(gather(x, [index], (axis,)), index.ndim, axis)


def placed(x: Tensor, count: int, target: int) -> Tensor:
    """Move the first `count` axes to another position."""
    return moveaxis(x, list(range(count)), list(range(target, target + count)))


@function
def take_along_axis(x: ArrayLike, indices: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The elements at indices along an axis, each row of `indices` for its own row of `x`.

    >>> take_along_axis(as_tensor([[1, 2], [3, 4]]), as_tensor([[1], [0]])).tolist()
    [[2], [3]]
    """
    return pick(as_tensor(x), as_tensor(indices), axis, wraps=True)


def pick(x: Tensor, index: Tensor, axis: int, wraps: bool) -> Tensor:
    """`take_along_axis`, with or without counting negative indices from the end."""
    accept("take_along_axis", index.dtype, "integer")
    if x.ndim != index.ndim:
        raise UserError("take_along_axis", f"as many dimensions are required, got shapes {x.shape} and {index.shape}.")
    axis = normal_axis("take_along_axis", axis, x.ndim)
    others = [(*shape[:axis], 1, *shape[axis + 1 :]) for shape in (x.shape, index.shape)]
    rows = broadcast_shape("take_along_axis", *others)
    x = expand_to(x, (*rows[:axis], x.shape[axis], *rows[axis + 1 :]))
    index = expand_to(index, (*rows[:axis], index.shape[axis], *rows[axis + 1 :]))
    return gather(x, grid_along(index, axis), tuple(range(x.ndim)), wraps)


def grid_along(index: Tensor, axis: int) -> list[Tensor]:
    """An index tensor for every axis: the given one along `axis`, each element's own place along the others."""
    return [index if a == axis else expand_to(_along(a, index.shape), index.shape) for a in range(index.ndim)]


def _along(axis: int, shape: Shape) -> Tensor:
    """The index along one axis, in a shape that broadcasts over all."""
    return reshape(iota(shape[axis]), [n if i == axis else 1 for i, n in enumerate(shape)])


@function
def embedding(table: ArrayLike, index: ArrayLike) -> Tensor:
    """The rows of a table at indices: an embedding lookup.

    >>> embedding(as_tensor([[1.0, 2.0], [3.0, 4.0]]), as_tensor([1, 1])).tolist()
    [[3.0, 4.0], [3.0, 4.0]]
    """
    table = as_tensor(table)
    if table.ndim < 1:
        raise UserError("embedding", f"a table of rows is required, got shape {table.shape}.")
    return take(table, index, axis=0)
