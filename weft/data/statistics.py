"""Exact mean and standard deviation of uint8 images, from one histogram per channel. Histograms of chunks can be added."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

_STEP = 1 << 22  # bytes per bincount, which widens them to eight times their size


class Statistics(NamedTuple):
    """Mean and standard deviation per channel, of values scaled to [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, counts: np.ndarray) -> Statistics:
        """From a histogram (channels, 256). Sums are exact integers; only the last step rounds.

        >>> Statistics.of(histogram(np.array([[[[0, 255]]]], np.uint8)))
        Statistics(mean=(0.5,), std=(0.5,))
        """
        pairs = [_mean_and_std([int(n) for n in row]) for row in counts]
        return cls(tuple(m for m, _ in pairs), tuple(s for _, s in pairs))


def histogram(images: np.ndarray) -> np.ndarray:
    """Histogram of the bytes of each channel: (N, C, H, W) to (C, 256)."""
    counts = np.zeros((images.shape[1], 256), np.int64)
    step = max(1, _STEP // max(1, math.prod(images.shape[1:])))
    for start in range(0, len(images), step):
        part = images[start : start + step]
        for channel, row in enumerate(counts):
            row += np.bincount(part[:, channel].ravel(), minlength=256)
    return counts


def _mean_and_std(counts: list[int]) -> tuple[float, float]:
    number = max(sum(counts), 1)
    total = sum(value * n for value, n in enumerate(counts))
    squares = sum(value * value * n for value, n in enumerate(counts))
    return total / (number * 255), math.sqrt(number * squares - total * total) / (number * 255)
