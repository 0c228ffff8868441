"""`Augment` chains augmentations and fuses the geometric ones; `augmentation` returns a preset by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import UserError
from ..nn.containers import Sequential
from ..nn.dropout import GaussianNoise as GaussianNoise
from ..nn.module import Module
from ..tensor import ArrayLike
from . import checks
from .colour import ColorJitter, RandomErasing, ToFloat
from .geometry import GeometricAugmentation, RandomAffine, RandomCrop, RandomFlip
from .mixup import MixAugmentation
from .policies import AugmentationPolicy, RandAugment
from .warp import WarpView, view


class Augment(Sequential):
    """Apply augmentations in order. Consecutive geometric ones (flips, crops, rotations ...) are fused into one warp.

    So pixels are interpolated only once, and a rotation after a crop shows the pixels around the crop instead of black
    corners. Called with labels, `augment(x, y)`, it returns (x, y); MixUp and CutMix require them.

    >>> import numpy as np
    >>> augment = Augment(ToFloat(), RandomFlip(), RandomCrop(8, padding=1))
    >>> augment(np.zeros((5, 3, 8, 8), np.uint8)).shape
    (5, 3, 8, 8)
    """

    def forward(self, x: ArrayLike, y: ArrayLike | None = None) -> Any:
        value: Any = x
        for part in self:
            if isinstance(part, GeometricAugmentation | AugmentationPolicy):
                start = (
                    value
                    if isinstance(value, WarpView)
                    else checks.check_images(type(part).__name__, value, floats=False)
                )
                value = part(view(start))
            elif isinstance(part, MixAugmentation):
                value, y = part(_sampled(value), self._labels(part, y))
            else:
                value = part(_sampled(value))
        return _sampled(value) if y is None else (_sampled(value), y)

    def _labels(self, part: Module, y: ArrayLike | None) -> ArrayLike:
        if y is None:
            raise UserError("Augment", f"{type(part).__name__} requires labels. Call augment(x, y).")
        return y


def _sampled(value: Any) -> Any:
    return value.sample() if isinstance(value, WarpView) else value


def augmentation(name: str, size: int | Sequence[int], *, flip: bool = True) -> Augment:
    """A preset augmentation for an output size: light, shift, standard or strong.

    light: flips and crops; shift: flips and shifts by up to two pixels, with reflected borders; standard: also rotation, scaling and colour jitter; strong: RandAugment and random erasing.
    All begin with ToFloat. Pass `flip=False` where left and right matter, as in digits and letters.

    >>> augmentation("light", 32)
    Augment(
      layers.0: ToFloat()
      layers.1: RandomFlip(horizontal=True, vertical=False, p=0.5)
      layers.2: RandomCrop(size=(32, 32), padding=(4, 4), mode=constant, fill=0.0)
    )
    """
    if name not in _PRESETS:
        raise UserError("augmentation", f"the name must be {', '.join(_PRESETS)}, got {name!r}.")
    height, width = checks.check_size("augmentation", size)
    first = [ToFloat(), RandomFlip()] if flip else [ToFloat()]
    crop = RandomCrop((height, width), (max(1, height // 8), max(1, width // 8)))
    return Augment(*first, *_PRESETS[name](crop))


_PRESETS: dict[str, Callable[[RandomCrop], list[Any]]] = {
    "light": lambda crop: [crop],
    "shift": lambda crop: [RandomCrop(crop.size, 2, mode="reflect")],
    "standard": lambda crop: [
        RandomAffine(degrees=10.0, scale=(0.9, 1.1)),
        crop,
        ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2),
    ],
    "strong": lambda crop: [crop, RandAugment(2, 9.0), RandomErasing(0.25)],
}
