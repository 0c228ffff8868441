"""Indexing `x[key]` and updates of `x[key]`, by NumPy's rules.

Every key is lowered to three steps: ranges (slice and flip), dropped and new axes (reshape), and integer arrays (gather). Updates of a
slice, at static or traced numbers, are one `update_slice`; updates at integer arrays are a scatter. Writing one value under a mask needs none of them: it is a `where`, whose shape does not depend on the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import bool_
from ..errors import UserError, UserIndexError
from ..graph.node import CONST, Shape
from ..records import dataclass
from ..tensor import TRACING, ArrayLike, Tensor, as_tensor, function
from .convert import asarray
from .creation import iota
from .declare import accept, broadcast_shape, expand_to
from .elementwise import add, astype, maximum, minimum, multiply, where
from .indexing import gather, placed, scatter
from .movement import broadcast_to, flatten, flip, moveaxis, reshape, slice_
from .slice_update import read_slice, update_slice


@dataclass
class _Key:
    """A key lowered to three steps: ranges, then a reshape, then integer arrays at the axes `places`."""

    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    flips: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)  # after the reshape
    arrays: list[Tensor] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    apart: bool = False  # the arrays are not adjacent, so their axes come first

    def add_range(self, axis: int, size: int, part: slice) -> None:
        try:
            start, stop, step = part.indices(size)
        except (TypeError, ValueError) as error:
            raise UserIndexError("index", f"a slice of ints is required, got {part}: {error}.") from None
        count = len(range(start, stop, step))
        if step < 0:
            start, step = start + (count - 1) * step, -step
            self.flips.append(axis)
        self._range(start if count else 0, count, step)
        self.shape.append(count)

    def _range(self, start: int, count: int, step: int) -> None:
        self.starts.append(start)
        self.stops.append(start + (count - 1) * step + 1 if count else start)
        self.steps.append(step)

    def add_int(self, axis: int, size: int, place: int) -> None:
        if not -size <= place < size:
            raise UserIndexError("index", f"index {place} is out of range for axis {axis} of size {size}.")
        self._range(place % size, 1, 1)

    def add_array(self, size: int, index: Tensor) -> None:
        self._range(0, size, 1)
        self._read(size, index)

    def add_single(self, index: Tensor) -> None:
        """A mask without dimensions: a new axis of size 1, from which one element or none is selected."""
        self._read(1, index)

    def is_whole(self, shape: Shape) -> bool:
        """Whether it has arrays and whole axes only, so that arrays index the axes of the tensor itself."""
        return not self.flips and tuple(self.shape) == shape == tuple(self.stops) and set(self.steps) <= {1}

    def _read(self, size: int, index: Tensor) -> None:
        self.places.append(len(self.shape))
        self.shape.append(size)
        self.arrays.append(index)


def _read_key(x: Tensor, key: Any) -> _Key:
    parts = _expand_key(x, list(key) if isinstance(key, tuple) else [key])
    has_arrays = any(isinstance(p, Tensor | _Single) for p in parts)
    result, axis, where_arrays = _Key(), 0, []
    for position, part in enumerate(parts):
        if part is Ellipsis:
            continue  # it only separates arrays
        if part is None:
            result.shape.append(1)
            continue
        if isinstance(part, _Single):
            result.add_single(part.places)
            where_arrays.append(position)
            continue
        size = x.shape[axis]
        if isinstance(part, slice):
            result.add_range(axis, size, part)
        elif isinstance(part, Tensor):
            result.add_array(size, part)
            where_arrays.append(position)
        elif has_arrays:  # next to arrays a number counts as an array
            _Key().add_int(axis, size, part)
            result.add_array(size, as_tensor(part))
            where_arrays.append(position)
        else:
            result.add_int(axis, size, part)
        axis += 1
    result.apart = bool(where_arrays) and where_arrays[-1] - where_arrays[0] + 1 != len(where_arrays)
    return result


def _expand_key(x: Tensor, parts: list[Any]) -> list[Any]:
    """The key with an entry for every axis: arrays as tensors, masks as the indices they select."""
    parts = [q for p in parts for q in _normal_part(p)]
    dots = [i for i, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise UserIndexError("index", "only one '...' can stand in an index.")
    named = len([p for p in parts if _names_an_axis(p)])
    if named > x.ndim:
        raise UserIndexError("index", f"{named} indices are too many for a tensor of {x.ndim} dimensions.")
    rest = [slice(None)] * (x.ndim - named)
    at = dots[0] if dots else len(parts)
    full = [*parts[:at], *rest, *parts[at:]]
    axis = 0
    for i, part in enumerate(full):
        if isinstance(part, _Mask):
            if x.shape[axis] != part.size:
                raise UserIndexError("index", f"a mask of shape {part.shape} does not fit shape {x.shape}.")
            full[i] = part.places
        axis += _names_an_axis(part)
    return full


def _names_an_axis(part: Any) -> bool:
    return part is not None and part is not Ellipsis and not isinstance(part, _Single)


class _Mask(NamedTuple):
    """One axis of a boolean mask."""

    places: Tensor
    size: int
    shape: Shape


class _Single(NamedTuple):
    """A mask without dimensions: index 0, or none."""

    places: Tensor


_NOT_KNOWN = (
    "how many elements a mask chooses is not known while a function is traced, and with it the shape of x[mask]. Use "
    "weft.where(mask, x, other), write one value with x.at[mask].set(value), or give the number: weft.boolean_mask(x, mask, size=n), "
    "weft.nonzero(mask, size=n)."
)


def _normal_part(part: Any) -> list[Any]:
    if part is None or part is Ellipsis or isinstance(part, slice):
        return [part]
    if isinstance(part, list | np.ndarray | np.generic | bool):
        array = np.asarray(part)
        part = asarray(array.astype(np.int64) if isinstance(part, list) and not array.size else array)
    if isinstance(part, Tensor):
        if part.dtype is bool_:
            if part.node.abstract:
                raise UserError("index", _NOT_KNOWN)
            if part.ndim == 0:
                return [_Single(asarray(np.flatnonzero(part.numpy())))]
            places = np.nonzero(part.numpy())
            return [_Mask(asarray(p), n, part.shape) for p, n in zip(places, part.shape, strict=True)]
        accept("index", part.dtype, "integer")
        return [part if part.ndim or _is_variable(part) else int(part)]
    if hasattr(part, "__index__"):
        return [part.__index__()]
    raise UserIndexError(
        "index", f"an index is made of ints, slices, '...', None, and arrays of ints or bools, got {part!r}."
    )


def _is_variable(part: Tensor) -> bool:
    """Whether an index is known only when it is computed: in a traced function all are, but those that are made of constants."""
    node = part.node
    return node.abstract or node.tracked or (TRACING.watch is not None and node.device is not None)


@function
def index(x: ArrayLike, key: Any) -> Tensor:
    """x[key], basic and advanced, by NumPy's rules."""
    x = as_tensor(x)
    k = _read_key(x, key)
    x = slice_(x, tuple(k.starts), tuple(k.stops), tuple(k.steps))
    x = reshape(flip(x, axis=k.flips) if k.flips else x, k.shape)
    if not k.arrays:
        return x
    shape = broadcast_shape("index", *(a.shape for a in k.arrays))
    selected = gather(x, [expand_to(a, shape) for a in k.arrays], tuple(k.places))
    return placed(selected, len(shape), 0 if k.apart else k.places[0])


# How a written value is combined with the old one.
_WAYS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "set": lambda old, new: new,
    "add": add,
    "multiply": multiply,
    "min": minimum,
    "max": maximum,
}


@function
def index_update(x: ArrayLike, key: Any, value: Any, how: str) -> Tensor:
    """A copy of x with x[key] set to a value, increased by it, and so on: the implementation of `x.at[key].set(value)`."""
    x = as_tensor(x)
    value = as_tensor(value, x.dtype)
    if how == "subtract":
        value, how = -value, "add"
    value = astype(value, x.dtype)
    masked = _masked_update(x, list(key) if isinstance(key, tuple) else [key], value, how)
    if masked is not None:
        return masked
    k = _read_key(x, key)
    if all(a.ndim == 0 for a in k.arrays) and (not k.arrays or len(k.shape) == x.ndim):
        return _sliced_update(x, k, value, how)
    if how not in ("set", "add"):
        raise UserError(
            "at", f"{how} takes ints, slices and masks, since arrays of ints may name a place twice. "
            "If yours do not, use x.at[key].set() with a value computed from x[key]."
        )  # fmt: skip
    if k.is_whole(x.shape):
        shape = broadcast_shape("index", *(a.shape for a in k.arrays))
        first = 0 if k.apart else k.places[0]
        rest = [n for i, n in enumerate(x.shape) if i not in k.places]
        value = _fit(value, (*rest[:first], *shape, *rest[first:]))
        rows = moveaxis(value, list(range(first, first + len(shape))), list(range(len(shape))))
        return scatter(x, rows, [expand_to(a, shape) for a in k.arrays], tuple(k.places), how)
    places = index(reshape(iota(x.size), x.shape), key)
    value = _fit(value, places.shape)
    return reshape(scatter(flatten(x), flatten(value), [flatten(places)], (0,), how), x.shape)


def _sliced_update(x: Tensor, k: _Key, value: Tensor, how: str) -> Tensor:
    """An update of one slice: no element is named twice."""
    dynamic = {p: a for p, a in zip(k.places, k.arrays, strict=True) if a.node.op is not CONST}
    starts = list(k.starts)
    counts = [len(range(a, b, s)) for a, b, s in zip(k.starts, k.stops, k.steps, strict=True)]
    for place, array in zip(k.places, k.arrays, strict=True):
        if place not in dynamic:
            starts[place], counts[place] = array.node.params[0] % x.shape[place], 1
    selected = [n for i, n in enumerate(k.shape) if i not in k.places]
    kept = [a for a in range(x.ndim) if a not in dynamic]
    value = reshape(_fit(value, tuple(selected)), [counts[a] for a in kept])
    value = flip(value, axis=[kept.index(a) for a in k.flips]) if k.flips else value
    if not value.size:
        return x
    way = ([*dynamic.values()], (*dynamic,), tuple(starts), tuple(k.steps))
    whole = value.shape == x.shape
    new = _WAYS[how](x if whole else read_slice(x, value.shape, *way), value) if how != "set" else value
    return new if whole else update_slice(x, new, *way)


def _masked_update(x: Tensor, parts: list[Any], value: Tensor, how: str) -> Tensor | None:
    """An update under one mask, next to ints and slices, if the value's shape does not depend on the number of selected elements."""
    found = [(i, p) for i, p in enumerate(map(_as_mask, parts)) if isinstance(p, Tensor)]
    if len(found) != 1 or not all(_is_basic(p) for i, p in enumerate(parts) if i != found[0][0]):
        return None
    [(at, mask)] = found
    before, behind = parts[:at], parts[at + 1 :]
    if value.size != 1 and not all(p is Ellipsis or isinstance(p, slice) for p in before + behind):
        return None  # next to ints and new axes NumPy moves the axes of the selection
    basic = (*before, *[slice(None)] * mask.ndim, *behind)
    plain = all(p is Ellipsis or p == slice(None) for p in basic)
    part = x if plain and len(basic) <= x.ndim else index(x, basic)
    first = _axes(before)
    if Ellipsis in before:
        first = part.ndim - mask.ndim - _axes(behind)
    if part.shape[first : first + mask.ndim] != mask.shape:
        raise UserIndexError("index", f"a mask of shape {mask.shape} does not fit shape {x.shape}.")
    rest = part.ndim - first - mask.ndim
    fitting = _over_mask(value, mask.ndim, rest)
    if fitting is None:
        return None
    chosen = expand_to(reshape(mask, (*(1,) * first, *mask.shape, *(1,) * rest)), part.shape)
    written = where(chosen, _WAYS[how](part, _fit(fitting, part.shape)), part)
    return written if plain else index_update(x, basic, written, "set")


def _as_mask(part: Any) -> Any:
    """Convert any form of a mask to a tensor; other parts are unchanged."""
    if isinstance(part, Tensor):
        return part if part.dtype is bool_ else None
    if isinstance(part, bool | np.bool_ | np.ndarray | list) and np.asarray(part).dtype == bool:
        return asarray(np.asarray(part))
    return None


def _is_basic(part: Any) -> bool:
    """An int, a slice, a new axis or '...'."""
    return part is None or part is Ellipsis or isinstance(part, slice | int | np.integer)


def _axes(parts: list[Any]) -> int:
    """The number of axes of the result that these parts of a key produce, without '...'."""
    return len([p for p in parts if p is None or isinstance(p, slice)])


def _over_mask(value: Tensor, mask_ndim: int, rest: int) -> Tensor | None:
    """The value with the mask's axes instead of the selection axis; None if it has a separate value per selected element."""
    at = value.ndim - rest - 1
    if at < 0:
        return value
    if value.shape[at] != 1:
        return None
    return reshape(value, (*value.shape[:at], *(1,) * mask_ndim, *value.shape[at + 1 :]))


def _fit(value: Tensor, shape: Shape) -> Tensor:
    """The value broadcast to the selection; extra leading axes of size 1 are dropped."""
    extra = value.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in value.shape[:extra]):
        value = reshape(value, value.shape[extra:])
    return broadcast_to(value, shape)
