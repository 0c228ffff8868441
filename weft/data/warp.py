"""Moving pictures: a `View` says where every pixel comes from, and only `seen` looks it up.

So a flip, a crop and a rotation, one after another, are one map from places in the result to places in the picture, and
the picture is read once. A place is counted from the middle, so that flips and rotations have no constant part:

    row = a * u + b * v + c        u = i - (height - 1) / 2
    column = d * u + e * v + f     v = j - (width - 1) / 2
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import float32, int32
from ..errors import UserError
from ..ops.convert import asarray
from ..ops.creation import iota
from ..ops.elementwise import abs as absolute
from ..ops.elementwise import floor, minimum, where
from ..ops.indexing import pick
from ..ops.math import clip
from ..ops.movement import reshape
from ..tensor import ArrayLike, Tensor, as_tensor

BORDERS = ("constant", "edge", "reflect")
Number = Tensor | float  # one for all pictures, or one for each: (batch,)


@dataclass(frozen=True)
class Map:
    """Where the places of a result come from: the six numbers at the head of this file."""

    a: Number = 1.0
    b: Number = 0.0
    c: Number = 0.0
    d: Number = 0.0
    e: Number = 1.0
    f: Number = 0.0

    def after(self, other: Map) -> Map:
        """First this map, then the other one: the place in the other one's picture."""
        a, d = other._turned(self.a, self.d)
        b, e = other._turned(self.b, self.e)
        c, f = other.at(self.c, self.f)
        return Map(a, b, c, d, e, f)

    def at(self, u: Number, v: Number) -> tuple[Number, Number]:
        """The row and the column that a place comes from."""
        row, column = self._turned(u, v)
        return _plus(row, self.c), _plus(column, self.f)

    def _turned(self, u: Number, v: Number) -> tuple[Number, Number]:
        return _plus(_times(self.a, u), _times(self.b, v)), _plus(_times(self.d, u), _times(self.e, v))


IDENTITY = Map()


def _times(x: Number, y: Number) -> Number:
    """A product that costs nothing where a factor is known to be 0 or 1."""
    if isinstance(x, float) and x in (0.0, 1.0):
        return y if x else 0.0
    if isinstance(y, float) and y in (0.0, 1.0):
        return x if y else 0.0
    return x * y


def _plus(x: Number, y: Number) -> Number:
    if isinstance(x, float) and x == 0.0:
        return y
    return x if isinstance(y, float) and y == 0.0 else x + y


@dataclass(frozen=True)
class View:
    """Pictures (batch, channels, height, width) and where the pixels of a result come from.

    `whole`: from pixels, not from between them. `border`: what lies outside, None as long as nobody asked for it.
    """

    pictures: Tensor
    size: tuple[int, int]
    map: Map = IDENTITY
    whole: bool = True
    border: str | None = None
    fill: float = 0.0

    def through(self, step: Map, *, whole: bool, size: tuple[int, int] | None = None) -> View:
        """The view that reads this one at other places."""
        return replace(self, map=step.after(self.map), whole=self.whole and whole, size=size or self.size)

    def beyond(self, border: str, fill: float = 0.0) -> View:
        """This view with something outside of it. There can be one kind of border: for another, look first."""
        if self.border not in (None, border) or (self.border and self.fill != fill):
            return view(self.seen()).beyond(border, fill)
        return replace(self, border=border, fill=fill)

    def seen(self) -> Tensor:
        """The pixels of the result."""
        if self.map is IDENTITY and self.size == self.pictures.shape[2:]:
            return self.pictures
        row, column = (self._places(axis) for axis in (0, 1))
        look = _pixels_at if self.whole else _between
        found = look(self.pictures, row.at, column.at)
        if (self.border or "constant") != "constant":
            return found
        fill = self.fill if found.dtype.is_float else int(self.fill)
        return where(_channels(row.inside & column.inside), found, asarray(fill, dtype=found.dtype))

    def _places(self, axis: int) -> _Places:
        h, w = self.size
        u = reshape(iota(h).astype(float32) - (h - 1) / 2, (1, h, 1))
        v = reshape(iota(w).astype(float32) - (w - 1) / 2, (1, 1, w))
        m = self.map
        first, second, shift = (_each(n) for n in ((m.a, m.b, m.c), (m.d, m.e, m.f))[axis])
        centred = as_tensor(_plus(_plus(_times(first, u), _times(second, v)), shift))
        return _folded(centred, self.pictures.shape[2 + axis], self.border or "constant")


def view(x: ArrayLike | View) -> View:
    """Pictures as a view of all of them, as they are."""
    if isinstance(x, View):
        return x
    x = as_tensor(x)
    return View(x, (x.shape[2], x.shape[3]))


@dataclass(frozen=True)
class _Places:
    """Where to look along one axis: a number from 0 to n - 1, and whether it was inside before it was brought there."""

    at: Tensor
    inside: Tensor


def _folded(centred: Tensor, n: int, border: str) -> _Places:
    """Places counted from the middle as places from 0 to n - 1; a pixel reaches half its width beyond its place."""
    half = (n - 1) / 2
    inside = absolute(centred) < n / 2 + 1e-3  # a little more: rounding must not push a border pixel out
    if border == "reflect" and n > 1:
        far = absolute(centred + half)
        far = far - floor(far / (2.0 * n - 2.0)) * (2.0 * n - 2.0)
        return _Places(clip(minimum(far, (2.0 * n - 2.0) - far), 0.0, n - 1.0), inside)
    return _Places(clip(centred + half, 0.0, n - 1.0), inside)


def _pixels_at(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels at places that are whole numbers."""
    return _pixels(x, row.astype(int32), column.astype(int32))


def _pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels in these rows and columns."""
    n, c, h, w = x.shape
    flat = row * w + column
    found = pick(reshape(x, (n, c, h * w)), reshape(flat, (flat.shape[0], 1, -1)), 2, wraps=False)
    return reshape(found, (n, c, *flat.shape[1:]))


def _between(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Straight lines between the four pixels around a place."""
    top, left = row.astype(int32), column.astype(int32)
    bottom, right = minimum(top + 1, x.shape[2] - 1), minimum(left + 1, x.shape[3] - 1)
    down, across = (_channels(p - q.astype(float32)).astype(x.dtype) for p, q in ((row, top), (column, left)))
    above = _mixed(_pixels(x, top, left), _pixels(x, top, right), across)
    below = _mixed(_pixels(x, bottom, left), _pixels(x, bottom, right), across)
    return _mixed(above, below, down)


def _mixed(x: Tensor, y: Tensor, part: Tensor) -> Tensor:
    return x * (1.0 - part) + y * part


def _each(value: Number) -> Number:
    """A number for each picture, spread over places."""
    return value if isinstance(value, float) else reshape(value, (-1, 1, 1))


def _channels(places: Tensor) -> Tensor:
    """Places (batch, height, width) spread over channels."""
    return reshape(places, (places.shape[0], 1, *places.shape[1:]))


def checked_border(layer: str, border: Any) -> str:
    """The name of a border."""
    if border not in BORDERS:
        raise UserError(layer, f"the border must be {', '.join(BORDERS)}, got {border!r}.")
    return str(border)
