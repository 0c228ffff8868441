"""Augmentations one after another, with as few readings of the pictures as possible, and three of them by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from ..nn.containers import Sequential
from ..nn.dropout import GaussianNoise as GaussianNoise
from ..nn.module import Module
from ..tensor import ArrayLike
from . import settings
from .colour import ColorJitter, RandomErasing, ToFloat
from .geometry import Geometric, RandomAffine, RandomCrop, RandomFlip
from .mix import Mix
from .policies import Policy, RandAugment
from .warp import View, view


class Augment(Sequential):
    """Augmentations one after another. Flips, crops, rotations and the like that follow each other are one warp.

    So pixels are interpolated once, and a rotation shows what a crop before it had cut off instead of a black corner.
    With labels, `augment(x, y)`, it gives (x, y): MixUp and CutMix need them.

    >>> import numpy as np
    >>> augment = Augment(ToFloat(), RandomFlip(), RandomCrop(8, padding=1))
    >>> augment(np.zeros((5, 3, 8, 8), np.uint8)).shape
    (5, 3, 8, 8)
    """

    def forward(self, x: ArrayLike, y: ArrayLike | None = None) -> Any:
        seen: Any = x
        for part in self:
            if isinstance(part, Geometric | Policy):
                begin = seen if isinstance(seen, View) else settings.pictures(type(part).__name__, seen, floats=False)
                seen = part(view(begin))
            elif isinstance(part, Mix):
                seen, y = part(_looked(seen), self._labels(part, y))
            else:
                seen = part(_looked(seen))
        return _looked(seen) if y is None else (_looked(seen), y)

    def _labels(self, part: Module, y: ArrayLike | None) -> ArrayLike:
        if y is None:
            raise UserError("Augment", f"{type(part).__name__} mixes labels too. Call augment(x, y).")
        return y


def _looked(seen: Any) -> Any:
    return seen.seen() if isinstance(seen, View) else seen


def augmentation(name: str, size: int | Sequence[int], *, flip: bool = True) -> Augment:
    """An augmentation by name, for pictures that are to have this size: light, standard or strong.

    light: flips and crops; standard: also turned, enlarged and with other colours; strong: RandAugment, and erased
    boxes. All begin with ToFloat. `flip=False` where left and right matter, as in digits and letters.

    >>> augmentation("light", 32)
    Augment(
      layers.0: ToFloat()
      layers.1: RandomFlip(horizontal=True, vertical=False, p=0.5)
      layers.2: RandomCrop(size=(32, 32), padding=(4, 4), mode=constant, fill=0.0)
    )
    """
    if name not in _PRESETS:
        raise UserError("augmentation", f"the name must be {', '.join(_PRESETS)}, got {name!r}.")
    height, width = settings.size_of("augmentation", size)
    first = [ToFloat(), RandomFlip()] if flip else [ToFloat()]
    crop = RandomCrop((height, width), (max(1, height // 8), max(1, width // 8)))
    return Augment(*first, *_PRESETS[name](crop))


_PRESETS = {
    "light": lambda crop: [crop],
    "standard": lambda crop: [
        RandomAffine(degrees=10.0, scale=(0.9, 1.1)),
        crop,
        ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2),
    ],
    "strong": lambda crop: [crop, RandAugment(2, 9.0), RandomErasing(0.25)],
}
