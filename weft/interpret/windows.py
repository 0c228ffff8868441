"""Windows that slide over an image: where they begin, and the mean of what was measured for those that cover a pixel."""

from __future__ import annotations

import numpy as np


def starts(size: int, window: int, stride: int) -> np.ndarray:
    """The first pixels of windows that cover an axis; the last one ends at its end.

    >>> starts(10, 4, 3), starts(9, 4, 3)
    (array([0, 3, 6]), array([0, 3, 5]))
    """
    found = list(range(0, size - window + 1, stride))
    if found[-1] + window < size:
        found.append(size - window)
    return np.array(found)


def covering_mean(
    values: np.ndarray, tops: np.ndarray, lefts: np.ndarray, window: tuple[int, int], size: tuple[int, ...]
) -> np.ndarray:
    """For each pixel the mean of the values of the windows that cover it; 0 where a stride leaves a gap."""
    total, count = np.zeros(size), np.zeros(size)
    for i, top in enumerate(tops):
        for j, left in enumerate(lefts):
            place = np.s_[top : top + window[0], left : left + window[1]]
            total[place] += values[i, j]
            count[place] += 1
    return np.asarray(total / np.maximum(count, 1), np.float32)
