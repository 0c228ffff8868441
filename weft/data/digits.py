"""The handwritten digits that ship with weft."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np

from ..ops.convert import asarray
from ..tensor import Tensor


class Digits(NamedTuple):
    """1,797 handwritten digits: images (1797, 8, 8) in [0, 1], labels (1797,) from 0 to 9."""

    images: Tensor
    labels: Tensor


def digits() -> Digits:
    """The UCI handwritten digits (E. Alpaydin and C. Kaynak, CC BY 4.0); see DIGITS.md.

    >>> images, labels = digits()
    >>> images.shape, labels[:5].tolist()
    ((1797, 8, 8), [0, 1, 2, 3, 4])
    """
    images, labels = digit_arrays()
    return Digits(asarray(images), asarray(labels))


def digit_arrays() -> tuple[np.ndarray, np.ndarray]:
    """The same as NumPy arrays: float32 images and int64 labels."""
    with resources.files(__package__).joinpath("digits.npz").open("rb") as file, np.load(file) as archive:
        images, labels = archive["images"], archive["labels"]
    return images.astype(np.float32) / 16, labels.astype(np.int64)
