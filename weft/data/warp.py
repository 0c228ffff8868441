"""Lazy image warps: a `WarpView` holds an affine map of coordinates, and `sample` computes the pixels.

A sequence of flips, crops and rotations composes to one map from coordinates of the result to coordinates of the image,
which is sampled once. Coordinates are relative to the centre, so that flips and rotations have no constant part:

    row = a * u + b * v + c        u = i - (height - 1) / 2
    column = d * u + e * v + f     v = j - (width - 1) / 2
"""

from __future__ import annotations

from dataclasses import replace
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
from ..records import dataclass
from ..tensor import ArrayLike, Tensor, as_tensor

BORDERS = ("constant", "edge", "reflect")
Number = Tensor | float  # one for all images, or one for each: (batch,)


@dataclass(frozen=True)
class AffineMap:
    """The affine map from coordinates of the result to coordinates of the image (formula at the top of this file)."""

    a: Number = 1.0
    b: Number = 0.0
    c: Number = 0.0
    d: Number = 0.0
    e: Number = 1.0
    f: Number = 0.0

    def after(self, other: AffineMap) -> AffineMap:
        """The composition: this map first, then the other one."""
        a, d = other._linear(self.a, self.d)
        b, e = other._linear(self.b, self.e)
        c, f = other.at(self.c, self.f)
        return AffineMap(a, b, c, d, e, f)

    def at(self, u: Number, v: Number) -> tuple[Number, Number]:
        """The row and column that the map assigns to (u, v)."""
        row, column = self._linear(u, v)
        return _add(row, self.c), _add(column, self.f)

    def _linear(self, u: Number, v: Number) -> tuple[Number, Number]:
        return _add(_multiply(self.a, u), _multiply(self.b, v)), _add(_multiply(self.d, u), _multiply(self.e, v))


IDENTITY = AffineMap()


def _multiply(x: Number, y: Number) -> Number:
    """A product that adds no operation if a factor is the constant 0 or 1."""
    if isinstance(x, float) and x in (0.0, 1.0):
        return y if x else 0.0
    if isinstance(y, float) and y in (0.0, 1.0):
        return x if y else 0.0
    return x * y


def _add(x: Number, y: Number) -> Number:
    if isinstance(x, float) and x == 0.0:
        return y
    return x if isinstance(y, float) and y == 0.0 else x + y


@dataclass(frozen=True)
class WarpView:
    """Images (batch, channels, height, width) and the map from coordinates of a result to theirs.

    `whole`: all coordinates are integers, so no interpolation is needed. `border`: the border mode, None if not set.
    """

    images: Tensor
    size: tuple[int, int]
    map: AffineMap = IDENTITY
    whole: bool = True
    border: str | None = None
    fill: float = 0.0

    def compose(self, step: AffineMap, *, whole: bool, size: tuple[int, int] | None = None) -> WarpView:
        """This view composed with another map."""
        return replace(self, map=step.after(self.map), whole=self.whole and whole, size=size or self.size)

    def with_border(self, border: str, fill: float = 0.0) -> WarpView:
        """This view with a border mode. A view has only one border: for a second one it is sampled first."""
        if self.border not in (None, border) or (self.border and self.fill != fill):
            return view(self.sample()).with_border(border, fill)
        return replace(self, border=border, fill=fill)

    def sample(self) -> Tensor:
        """The pixels of the result."""
        if self.map is IDENTITY and self.size == self.images.shape[2:]:
            return self.images
        row, column = (self._coordinates(axis) for axis in (0, 1))
        interpolate = _nearest if self.whole else _bilinear
        pixels = interpolate(self.images, row.at, column.at)
        if (self.border or "constant") != "constant":
            return pixels
        fill = self.fill if pixels.dtype.is_float else int(self.fill)
        return where(_with_channel_axis(row.inside & column.inside), pixels, asarray(fill, dtype=pixels.dtype))

    def _coordinates(self, axis: int) -> _Coordinates:
        h, w = self.size
        u = reshape(iota(h).astype(float32) - (h - 1) / 2, (1, h, 1))
        v = reshape(iota(w).astype(float32) - (w - 1) / 2, (1, 1, w))
        m = self.map
        first, second, shift = (_per_image(n) for n in ((m.a, m.b, m.c), (m.d, m.e, m.f))[axis])
        centred = as_tensor(_add(_add(_multiply(first, u), _multiply(second, v)), shift))
        return _resolve_border(centred, self.images.shape[2 + axis], self.border or "constant")


def view(x: ArrayLike | WarpView) -> WarpView:
    """Images as a view with the identity map."""
    if isinstance(x, WarpView):
        return x
    x = as_tensor(x)
    return WarpView(x, (x.shape[2], x.shape[3]))


@dataclass(frozen=True)
class _Coordinates:
    """Coordinates along one axis, clamped to 0...n - 1, and whether they were inside before clamping."""

    at: Tensor
    inside: Tensor


def _resolve_border(centred: Tensor, n: int, border: str) -> _Coordinates:
    """Centred coordinates as coordinates from 0 to n - 1; a pixel extends half its width beyond its coordinate."""
    half = (n - 1) / 2
    inside = absolute(centred) < n / 2 + 1e-3  # tolerance: rounding must not push a border pixel out
    if border == "reflect" and n > 1:
        distance = absolute(centred + half)
        distance = distance - floor(distance / (2.0 * n - 2.0)) * (2.0 * n - 2.0)
        return _Coordinates(clip(minimum(distance, (2.0 * n - 2.0) - distance), 0.0, n - 1.0), inside)
    return _Coordinates(clip(centred + half, 0.0, n - 1.0), inside)


def _nearest(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels at integer coordinates."""
    return _pixels(x, row.astype(int32), column.astype(int32))


def _pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Gather the pixels in these rows and columns."""
    n, c, h, w = x.shape
    flat = row * w + column
    pixels = pick(reshape(x, (n, c, h * w)), reshape(flat, (flat.shape[0], 1, -1)), 2, wraps=False)
    return reshape(pixels, (n, c, *flat.shape[1:]))


def _bilinear(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Bilinear interpolation between the four nearest pixels."""
    top, left = row.astype(int32), column.astype(int32)
    bottom, right = minimum(top + 1, x.shape[2] - 1), minimum(left + 1, x.shape[3] - 1)
    down, across = (_with_channel_axis(p - q.astype(float32)).astype(x.dtype) for p, q in ((row, top), (column, left)))
    above = _lerp(_pixels(x, top, left), _pixels(x, top, right), across)
    below = _lerp(_pixels(x, bottom, left), _pixels(x, bottom, right), across)
    return _lerp(above, below, down)


def _lerp(x: Tensor, y: Tensor, part: Tensor) -> Tensor:
    return x * (1.0 - part) + y * part


def _per_image(value: Number) -> Number:
    """One value per image, broadcastable over rows and columns."""
    return value if isinstance(value, float) else reshape(value, (-1, 1, 1))


def _with_channel_axis(places: Tensor) -> Tensor:
    """(batch, height, width) as (batch, 1, height, width)."""
    return reshape(places, (places.shape[0], 1, *places.shape[1:]))


def checked_border(layer: str, border: Any) -> str:
    """Check the name of a border mode."""
    if border not in BORDERS:
        raise UserError(layer, f"the border must be {', '.join(BORDERS)}, got {border!r}.")
    return str(border)
