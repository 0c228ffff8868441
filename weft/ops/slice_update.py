"""`update_slice`: a copy of a tensor with one slice replaced, at indices that may be known only when it runs.

No element is named twice, so nothing has to be ordered; if the old tensor is not needed any more, compiled programs write the slice
into its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..errors import UserError
from ..graph.node import Node, Op, Shape, Type
from ..tensor import Tensor, as_tensor, emit
from .creation import zeros, zeros_like
from .declare import Sample, Wrong, accept
from .indexing import Axes, checked, gather
from .movement import slice_


def _infer(inputs: tuple[Node, ...], axes: Axes, starts: Shape, steps: Shape) -> Type:
    x, value, *indices = inputs
    ndim = len(x.shape)
    if len(indices) != len(axes) or len({*axes, *range(ndim)}) != ndim or len(set(axes)) != len(axes):
        raise UserError("update_slice", f"an index for each of the axes {axes} of {x.type} is required.")
    for index in indices:
        accept("update_slice", index.dtype, "integer")
        if index.shape:
            raise UserError("update_slice", f"indices without dimensions are required, got {index.type}.")
    rest = [a for a in range(ndim) if a not in axes]
    if value.dtype is not x.dtype or len(value.shape) != len(rest) or not len(starts) == len(steps) == ndim:
        raise UserError("update_slice", f"{x.type} cannot take {value.type} at {starts}, {steps}, {axes}.")
    for a, count in zip(rest, value.shape, strict=True):
        if starts[a] < 0 or steps[a] < 1 or (count and starts[a] + (count - 1) * steps[a] >= x.shape[a]):
            raise UserError(
                "update_slice",
                f"a slice inside axis {a} of size {x.shape[a]} is required, got {count} from {starts[a]} by {steps[a]}.",
            )
    return x.type


def _reference(values: tuple[np.ndarray, ...], axes: Axes, starts: Shape, steps: Shape) -> np.ndarray:
    x, value, *indices = values
    at = dict(zip(axes, checked("update_slice", x, indices, axes), strict=True))
    counts = iter(value.shape)
    key = tuple(
        at[a] if a in at else slice(starts[a], starts[a] + next(counts) * steps[a], steps[a]) for a in range(x.ndim)
    )
    result = x.copy()
    result[key] = value
    return result


def _vjp(
    g: Tensor, y: Tensor, inputs: tuple[Tensor, ...], axes: Axes, starts: Shape, steps: Shape
) -> tuple[Callable[[], Tensor] | None, ...]:
    _, value, *indices = inputs
    return (
        lambda: update_slice(g, zeros_like(value), indices, axes, starts, steps),
        lambda: read_slice(g, value.shape, indices, axes, starts, steps),
        *[None] * len(indices),
    )


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape, value, axes, starts, steps in _SLICES:
        indices = [rng.integers(-shape[a], shape[a], ()) for a in axes]
        yield Sample([rng.normal(size=shape), rng.normal(size=value), *indices], (axes, starts, steps))


_SLICES: list[tuple[Shape, Shape, Axes, Shape, Shape]] = [
    ((4,), (), (0,), (0,), (1,)), ((5,), (2,), (), (1,), (2,)), ((3, 4, 5), (3, 5), (1,), (0, 0, 0), (1, 1, 1)),
    ((3, 4, 5), (2,), (2, 0), (0, 1, 0), (1, 2, 1)), ((3, 4), (3, 0), (), (0, 0), (1, 1)), ((6, 20), (2, 19), (), (1, 1), (3, 1)),
]  # fmt: skip

_UPDATE_SLICE = Op(
    "update_slice", "index", _infer, _reference, _vjp, ("axes", "starts", "steps"), None, samples=_samples,
    errors=(
        Wrong(lambda: update_slice(zeros(3), zeros(()), [as_tensor(3)], (0,), (0,), (1,)).numpy(), "[update_slice] index 3 is out of range for axis 0 of size 3"),
        Wrong(lambda: update_slice(zeros(3), zeros(2), [], (), (2,), (1,)), "[update_slice] a slice inside axis 0 of size 3 is required, got 2 from 2 by 1"),
    ), own_kernels=True, updates_input=True,
)  # fmt: skip


def update_slice(
    x: Tensor, value: Tensor, indices: Sequence[Tensor], axes: Axes, starts: Shape, steps: Shape
) -> Tensor:
    """A copy of x whose slice is `value`: at `indices` along `axes`, and from `starts` by `steps` along the other axes."""
    return emit(_UPDATE_SLICE, (x, value, *indices), (axes, starts, steps))


def read_slice(x: Tensor, shape: Shape, indices: Sequence[Tensor], axes: Axes, starts: Shape, steps: Shape) -> Tensor:
    """The slice that `update_slice` replaces by a value of this shape."""
    counts, stops = iter(shape), []
    for a in range(x.ndim):
        count = 0 if a in axes else next(counts)
        stops.append(x.shape[a] if a in axes else starts[a] + (count - 1) * steps[a] + 1 if count else starts[a])
    part = slice_(x, starts, tuple(stops), steps)
    return gather(part, indices, axes) if axes else part
