"""Random flips, crops and affine transforms, sampled for each image. In evaluation mode they only crop or resize.

Each is an affine map of coordinates (see warp.py). `Augment` composes consecutive maps and samples each image once.
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
from . import checks
from .checks import Range
from .warp import AffineMap, Number, WarpView, checked_border, view


class GeometricAugmentation(Module):
    """Base class of geometric augmentations: `random_view` in training mode, `eval_view` in evaluation mode."""

    def forward(self, x: ArrayLike | WarpView) -> Tensor | WarpView:
        if isinstance(x, WarpView):  # the caller samples it later
            return self.random_view(x) if self.training else self.eval_view(x)
        begin = view(checks.check_images(type(self).__name__, x, floats=False))
        return (self.random_view(begin) if self.training else self.eval_view(begin)).sample()

    def random_view(self, v: WarpView) -> WarpView:
        """The randomly transformed view."""
        raise UserError(type(self).__name__, "a subclass needs a method random_view(self, view).")

    def eval_view(self, v: WarpView) -> WarpView:
        """The view in evaluation mode."""
        return v


class RandomFlip(GeometricAugmentation):
    """Flip left and right, or top and bottom, with probability p each."""

    def __init__(self, horizontal: bool = True, vertical: bool = False, p: float = 0.5) -> None:
        self.horizontal, self.vertical = bool(horizontal), bool(vertical)
        self.p = checks.check_probability("RandomFlip", p)

    def random_view(self, v: WarpView) -> WarpView:
        signs = [self._sign(len(v.images)) if wanted else 1.0 for wanted in (self.vertical, self.horizontal)]
        return v.compose(AffineMap(a=signs[0], e=signs[1]), whole=True)

    def _sign(self, count: int) -> Tensor:
        return where(random.bernoulli(self.p, (count,)), -1.0, 1.0)


class RandomCrop(GeometricAugmentation):
    """Crop this size at a random position of the padded image; in evaluation mode, at its centre.

    The padding is `fill` (mode "constant"), the outermost pixels ("edge") or a reflection ("reflect").
    """

    def __init__(
        self, size: int | Sequence[int], padding: int | Sequence[int] = 0, mode: str = "constant", fill: float = 0.0
    ) -> None:
        self.size = checks.check_size("RandomCrop", size)
        self.padding = per_axis("RandomCrop", "padding", padding, 2, least=0)
        self.mode, self.fill = checked_border("RandomCrop", mode), float(fill)

    def random_view(self, v: WarpView) -> WarpView:
        offsets = [random.integers(0, slack + 1, (len(v.images),)) for slack in self._slack(v)]
        shifts = [d.astype("float32") - slack / 2.0 for d, slack in zip(offsets, self._slack(v), strict=True)]
        return self._bordered(v).compose(AffineMap(c=shifts[0], f=shifts[1]), whole=True, size=self.size)

    def eval_view(self, v: WarpView) -> WarpView:
        if v.size == self.size:
            return v
        offset = [(slack // 2) - slack / 2.0 for slack in self._slack(v)]
        return self._bordered(v).compose(AffineMap(c=offset[0], f=offset[1]), whole=True, size=self.size)

    def _slack(self, v: WarpView) -> list[int]:
        """The difference between the padded image size and the crop size."""
        slack = [n + 2 * p - s for n, p, s in zip(v.size, self.padding, self.size, strict=True)]
        if min(slack) < 0:
            raise UserError(
                "RandomCrop",
                f"an image of {v.size} with a padding of {self.padding} is smaller than {self.size}. Increase the padding.",
            )
        return slack

    def _bordered(self, v: WarpView) -> WarpView:
        return v.with_border(self.mode, self.fill) if max(self.padding) else v


class RandomResizedCrop(GeometricAugmentation):
    """Crop a random part and resize it to this size; in evaluation mode, resize the whole image (Szegedy et al. 2015).

    scale: range of the area fraction; ratio: range of width / height, sampled uniformly in its logarithm. A part larger
    than the image is clipped to it. Sampling is bilinear without antialiasing.
    """

    def __init__(
        self, size: int | Sequence[int], scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3)
    ) -> None:
        self.size = checks.check_size("RandomResizedCrop", size)
        self.scale = checks.check_range("RandomResizedCrop", "scale", scale, 1e-6, 1.0)
        self.ratio = checks.check_range("RandomResizedCrop", "ratio", ratio, 1e-3, 1e3)

    def random_view(self, v: WarpView) -> WarpView:
        checks.check_float("RandomResizedCrop", v.images)
        (h, w), count = v.size, len(v.images)
        height, width = box_sizes(count, v.size, self.scale, self.ratio)
        top, left = (random.uniform((count,)) * (n - m) for n, m in ((h, height), (w, width)))
        shifts = top + height / 2.0 - h / 2.0, left + width / 2.0 - w / 2.0
        part = AffineMap(a=height / float(self.size[0]), c=shifts[0], e=width / float(self.size[1]), f=shifts[1])
        return v.compose(part, whole=False, size=self.size)

    def eval_view(self, v: WarpView) -> WarpView:
        if v.size == self.size:
            return v
        (h, w), (height, width) = v.size, self.size
        return v.compose(AffineMap(a=h / height, e=w / width), whole=False, size=self.size)


def box_sizes(
    count: int, size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Heights and widths of random boxes, no larger than the image."""
    area = random.uniform((count,), *scale) * float(size[0] * size[1])
    across = exp(random.uniform((count,), math.log(ratio[0]), math.log(ratio[1])))
    return minimum(sqrt(area / across), float(size[0])), minimum(sqrt(area * across), float(size[1]))


class RandomAffine(GeometricAugmentation):
    """Rotate (counter-clockwise), shear (lower rows to the right) and scale about the centre, then translate.

    degrees and shear: a number d for angles from -d to d, or (low, high). translate: the largest translation as a
    fraction of (height, width). scale: (low, high) factors. `mode` and `fill` set the border, as in RandomCrop.
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
        self.degrees = checks.check_range(layer, "degrees", degrees)
        self.shear = checks.check_range(layer, "shear", shear, -89.0, 89.0)
        self.scale = checks.check_range(layer, "scale", scale, 1e-3, 1e3)
        parts = tuple(map(float, translate)) if isinstance(translate, Sequence) else (float(translate),) * 2
        if len(parts) != 2 or not all(0.0 <= p <= 1.0 for p in parts):
            raise UserError(layer, f"translate must be a fraction in [0, 1], or a pair of them, got {translate!r}.")
        self.translate = parts
        self.mode, self.fill = checked_border(layer, mode), float(fill)

    def random_view(self, v: WarpView) -> WarpView:
        checks.check_float(type(self).__name__, v.images)
        count = len(v.images)
        angle, lean = (_sample(count, s, math.pi / 180.0) for s in (self.degrees, self.shear))
        slope = tan(lean) if isinstance(lean, Tensor) else math.tan(lean)
        moves = [_sample(count, (-p * n, p * n)) for p, n in zip(self.translate, v.size, strict=True)]
        return affine(v.with_border(self.mode, self.fill), angle, slope, _sample(count, self.scale), moves[0], moves[1])


class RandomRotation(RandomAffine):
    """Rotate about the centre, counter-clockwise: d for angles from -d to d, or (low, high), in degrees."""

    def __init__(self, degrees: Range, mode: str = "constant", fill: float = 0.0) -> None:
        super().__init__(degrees, mode=mode, fill=fill)


def _sample(count: int, span: tuple[float, float], unit: float = 1.0) -> Number:
    """Sample a range uniformly; a range of one number is that number."""
    low, high = span[0] * unit, span[1] * unit
    return low if low == high else random.uniform((count,), low, high)


def affine(
    v: WarpView, angle: Number, slope: Number, scale: Number, down: Number, right: Number, rise: Number = 0.0
) -> WarpView:
    """Shear, then scale and rotate, then translate. Maps are inverse: from the result's coordinates to the image's.

    At most one of slope (rows shift to the right, by slope times their height below the centre) and rise (columns shift
    down) may be nonzero.
    """
    turned = [sin(angle), cos(angle)] if isinstance(angle, Tensor) else [math.sin(angle), math.cos(angle)]
    s, c = (t if isinstance(scale, float) and scale == 1.0 else t / scale for t in turned)
    sheared = v.compose(AffineMap(b=-rise, d=-slope), whole=False)
    rotated = sheared.compose(AffineMap(a=c, b=s, d=-s, e=c), whole=False)
    return rotated.compose(AffineMap(c=-down, f=-right), whole=False)
