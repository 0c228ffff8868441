"""Writing elements at indices."""

from __future__ import annotations

from ...control import scan
from ...errors import UserError
from ...ops.creation import iota
from ...ops.elementwise import maximum, minimum
from ...ops.movement import broadcast_to, moveaxis, reshape
from ...tensor import Tensor
from ..registry import op

_COMBINE = {"mul": lambda a, b: a * b, "max": maximum, "min": minimum}


def _along(axis: int, shape: tuple[int, ...]) -> Tensor:
    return broadcast_to(reshape(iota(shape[axis]), [n if i == axis else 1 for i, n in enumerate(shape)]), shape)


def _written(x: Tensor, key: tuple[Tensor, ...], updates: Tensor, reduction: str) -> Tensor:
    """Updates written at a key of index tensors, or combined with what is there; several may meet at one place."""
    if reduction == "none":
        return x.at[key].set(updates)
    if reduction == "add":
        return x.at[key].add(updates)
    if reduction not in _COMBINE:
        raise UserError("onnx", f"the reduction none, add, mul, max or min is required, got {reduction!r}.")
    combine = _COMBINE[reduction]
    rows = [reshape(k, (-1,)) for k in key]
    values = reshape(updates, (rows[0].shape[0], *updates.shape[key[0].ndim :]))
    if not rows[0].shape[0]:
        return x

    # One after the other: the update at a place must see the ones before it.
    def step(y: Tensor, now: list[Tensor]) -> tuple[Tensor, None]:
        *place, value = now
        return y.at[tuple(place)].set(combine(y[tuple(place)], value)), None

    result: Tensor = scan(step, x, [*rows, values])[0]
    return result


@op("ScatterElements", "Scatter")
def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none") -> Tensor:
    axis %= x.ndim
    key = tuple(indices if i == axis else _along(i, indices.shape) for i in range(x.ndim))
    return _written(x, key, updates, reduction)


@op("ScatterND")
def scatter_slices(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    key = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _written(x, key, updates, reduction)


@op("TensorScatter")
def tensor_scatter(
    past: Tensor, update: Tensor, start: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """Write a sequence into a cache at a position for each batch element."""
    axis %= past.ndim
    cache, new = moveaxis(past, axis, 1), moveaxis(update, axis, 1)
    batch, length = new.shape[:2]
    places = reshape(iota(length), (1, -1)) + (0 if start is None else reshape(start.astype("int64"), (-1, 1)))
    places = broadcast_to(places, (batch, length))
    places = places % cache.shape[1] if mode == "circular" else places
    return moveaxis(cache.at[(_along(0, (batch, length)), places)].set(new), 1, axis)
