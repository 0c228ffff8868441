"""A summary of the images of a dataset: the mean image and the histogram of each channel, from a sample of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .dataset import Dataset
from .statistics import histogram

SAMPLE = 500  # images, spread over the dataset
_STEP = 50


class PixelSummary(NamedTuple):
    """The mean image (channels, height, width) as bytes, the histogram (channels, 256), and how many images were looked at."""

    mean_image: np.ndarray
    histogram: np.ndarray
    images: int


def pixel_summary(dataset: Dataset, most: int = SAMPLE) -> PixelSummary:
    """Summarize at most so many images, spread over the dataset.

    >>> from weft.data import known
    >>> found = pixel_summary(known("digits").train, most=100)
    >>> found.mean_image.shape, int(found.histogram.sum()) == 100 * 64
    ((1, 8, 8), True)
    """
    chosen = np.unique(np.linspace(0, len(dataset) - 1, min(most, len(dataset))).round().astype(np.int64))
    total = np.zeros(dataset.shape, np.float64)
    counts = np.zeros((dataset.shape[0], 256), np.int64)
    for start in range(0, len(chosen), _STEP):
        images = as_bytes(dataset.inputs(chosen[start : start + _STEP]))
        total += images.sum(axis=0, dtype=np.float64)
        counts += histogram(images)
    return PixelSummary(np.rint(total / max(1, len(chosen))).astype(np.uint8), counts, len(chosen))


def as_bytes(images: np.ndarray) -> np.ndarray:
    """Images as bytes; floats are taken to lie in 0 to 1."""
    return images if images.dtype == np.uint8 else np.clip(np.rint(255.0 * images), 0, 255).astype(np.uint8)
