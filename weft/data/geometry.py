"""Random flips, crops, rotations, others for each picture. In use they give back the picture, in the size asked for.

They are maps of places (see warp.py). `Augment` joins those that follow each other, and every picture is read once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import random
from ..errors import UserError
from ..nn.module import Module
from ..ops.conv import per_axis
from ..ops.elementwise import cos, exp, minimum, sin, sqrt, tan, where
from ..tensor import ArrayLike, Tensor
from . import settings
from .settings import Range
from .warp import Map, Number, View, checked_border, view


class Geometric(Module):
    """What moves pixels. A subclass says how: `moved` in training, `still` in use."""

    def forward(self, x: ArrayLike | View) -> Tensor | View:
        if isinstance(x, View):  # somebody else looks, later
            return self.moved(x) if self.training else self.still(x)
        begin = view(settings.pictures(type(self).__name__, x, floats=False))
        return (self.moved(begin) if self.training else self.still(begin)).seen()

    def moved(self, v: View) -> View:
        """The view with random numbers."""
        raise UserError(type(self).__name__, "a geometric augmentation needs a method moved(self, view).")

    def still(self, v: View) -> View:
        """The view without them."""
        return v


class RandomFlip(Geometric):
    """Left and right, or top and bottom, exchanged with probability p each."""

    def __init__(self, horizontal: bool = True, vertical: bool = False, p: float = 0.5) -> None:
        self.horizontal, self.vertical = bool(horizontal), bool(vertical)
        self.p = settings.chance("RandomFlip", p)

    def moved(self, v: View) -> View:
        signs = [self._sign(len(v.pictures)) if wanted else 1.0 for wanted in (self.vertical, self.horizontal)]
        return v.through(Map(a=signs[0], e=signs[1]), whole=True)

    def _sign(self, count: int) -> Tensor:
        return where(random.bernoulli(self.p, (count,)), -1.0, 1.0)


class RandomCrop(Geometric):
    """A part of this size at a random place of the picture with a border around it; in use, the middle of the picture.

    The border is `fill` (mode "constant"), the outermost pixels ("edge") or a mirror ("reflect").
    """

    def __init__(
        self, size: int | Sequence[int], padding: int | Sequence[int] = 0, mode: str = "constant", fill: float = 0.0
    ) -> None:
        self.size = settings.size_of("RandomCrop", size)
        self.padding = per_axis("RandomCrop", "padding", padding, 2, least=0)
        self.mode, self.fill = checked_border("RandomCrop", mode), float(fill)

    def moved(self, v: View) -> View:
        drawn = [random.integers(0, room + 1, (len(v.pictures),)) for room in self._room(v)]
        shifts = [d.astype("float32") - room / 2.0 for d, room in zip(drawn, self._room(v), strict=True)]
        return self._bordered(v).through(Map(c=shifts[0], f=shifts[1]), whole=True, size=self.size)

    def still(self, v: View) -> View:
        if v.size == self.size:
            return v
        off = [(room // 2) - room / 2.0 for room in self._room(v)]
        return self._bordered(v).through(Map(c=off[0], f=off[1]), whole=True, size=self.size)

    def _room(self, v: View) -> list[int]:
        """By how much the picture with its border is larger than the part."""
        room = [n + 2 * p - s for n, p, s in zip(v.size, self.padding, self.size, strict=True)]
        if min(room) < 0:
            raise UserError(
                "RandomCrop",
                f"a picture of {v.size} with a border of {self.padding} is smaller than {self.size}. Give more padding.",
            )
        return room

    def _bordered(self, v: View) -> View:
        return v.beyond(self.mode, self.fill) if max(self.padding) else v


class RandomResizedCrop(Geometric):
    """A random part of the picture, brought to this size; in use, the whole picture (Szegedy et al. 2015).

    scale: the part of the area; ratio: width over height, evenly in its logarithm. A part that would be higher or wider
    than the picture is made as high or wide as it. There is no smoothing: much smaller results take every n-th pixel.
    """

    def __init__(
        self, size: int | Sequence[int], scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3)
    ) -> None:
        self.size = settings.size_of("RandomResizedCrop", size)
        self.scale = settings.span("RandomResizedCrop", "scale", scale, 1e-6, 1.0)
        self.ratio = settings.span("RandomResizedCrop", "ratio", ratio, 1e-3, 1e3)

    def moved(self, v: View) -> View:
        settings.floating("RandomResizedCrop", v.pictures)
        (h, w), count = v.size, len(v.pictures)
        height, width = box_sizes(count, v.size, self.scale, self.ratio)
        top, left = (random.uniform((count,)) * (n - m) for n, m in ((h, height), (w, width)))
        shifts = top + height / 2.0 - h / 2.0, left + width / 2.0 - w / 2.0
        part = Map(a=height / float(self.size[0]), c=shifts[0], e=width / float(self.size[1]), f=shifts[1])
        return v.through(part, whole=False, size=self.size)

    def still(self, v: View) -> View:
        if v.size == self.size:
            return v
        (h, w), (height, width) = v.size, self.size
        return v.through(Map(a=h / height, e=w / width), whole=False, size=self.size)


def box_sizes(
    count: int, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Heights and widths of random boxes, no larger than the picture."""
    area = random.uniform((count,), *scale) * float(size[0] * size[1])
    across = exp(random.uniform((count,), math.log(ratio[0]), math.log(ratio[1])))
    return minimum(sqrt(area / across), float(size[0])), minimum(sqrt(area * across), float(size[1]))


class RandomAffine(Geometric):
    """Turned (counter-clockwise), sheared (lower rows to the right) and enlarged about the middle, and moved.

    degrees and shear: a number d for angles from -d to d, or (low, high). translate: the largest part of (height,
    width) it moves by. scale: (low, high) factors. Outside the picture lies `fill`, the edge or a mirror, as in
    RandomCrop.
    """

    def __init__(
        self,
        degrees: Range = 0.0,
        translate: float | Sequence[float] = 0.0,
        scale: Sequence[float] = (1.0, 1.0),
        shear: Range = 0.0,
        mode: str = "constant",
        fill: float = 0.0,
    ) -> None:
        layer = type(self).__name__
        self.degrees = settings.span(layer, "degrees", degrees)
        self.shear = settings.span(layer, "shear", shear, -89.0, 89.0)
        self.scale = settings.span(layer, "scale", scale, 1e-3, 1e3)
        parts = tuple(map(float, translate)) if isinstance(translate, Sequence) else (float(translate),) * 2
        if len(parts) != 2 or not all(0.0 <= p <= 1.0 for p in parts):
            raise UserError(layer, f"translate must be a part in [0, 1], or 2 of them, got {translate!r}.")
        self.translate = parts
        self.mode, self.fill = checked_border(layer, mode), float(fill)

    def moved(self, v: View) -> View:
        settings.floating(type(self).__name__, v.pictures)
        count = len(v.pictures)
        angle, lean = (_drawn(count, s, math.pi / 180.0) for s in (self.degrees, self.shear))
        slope = tan(lean) if isinstance(lean, Tensor) else math.tan(lean)
        moves = [_drawn(count, (-p * n, p * n)) for p, n in zip(self.translate, v.size, strict=True)]
        return affine(v.beyond(self.mode, self.fill), angle, slope, _drawn(count, self.scale), moves[0], moves[1])


class RandomRotation(RandomAffine):
    """Turned about the middle, counter-clockwise: d for angles from -d to d, or (low, high), in degrees."""

    def __init__(self, degrees: Range, mode: str = "constant", fill: float = 0.0) -> None:
        super().__init__(degrees, mode=mode, fill=fill)


def _drawn(count: int, span: tuple[float, float], unit: float = 1.0) -> Number:
    """Random numbers in a range, or the one number that is in it."""
    low, high = span[0] * unit, span[1] * unit
    return low if low == high else random.uniform((count,), low, high)


def affine(
    v: View, angle: Number, slope: Number, scale: Number, down: Number, right: Number, rise: Number = 0.0
) -> View:
    """The picture sheared, then enlarged and turned, then moved. Maps go backwards: from the result to the picture.

    Only one of slope (a row moves to the right by slope times how far down it is) and rise (a column moves down) may
    not be 0.
    """
    turned = [sin(angle), cos(angle)] if isinstance(angle, Tensor) else [math.sin(angle), math.cos(angle)]
    s, c = (t if isinstance(scale, float) and scale == 1.0 else t / scale for t in turned)
    sheared = v.through(Map(b=-rise, d=-slope), whole=False)
    rotated = sheared.through(Map(a=c, b=s, d=-s, e=c), whole=False)
    return rotated.through(Map(c=-down, f=-right), whole=False)
