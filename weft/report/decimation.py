"""Fewer points with the same shape, so that charts of long runs stay quick."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def decimated(x: np.ndarray, y: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many points: of each of equal parts the first, the smallest, the largest and the last stay, so that no spike is lost.

    >>> decimated(np.arange(10.0), np.arange(10.0) % 7, 4)[0].tolist()
    [0.0, 6.0, 9.0]
    """
    if len(x) <= most:
        return x, y
    edges = np.linspace(0, len(y), max(1, most // 4) + 1).astype(np.int64)
    lows, highs = np.where(np.isnan(y), np.inf, y), np.where(np.isnan(y), -np.inf, y)
    chosen = {0, len(y) - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        chosen |= {start, start + int(lows[start:end].argmin()), start + int(highs[start:end].argmax()), end - 1}
    keep = np.array(sorted(chosen))
    return x[keep], y[keep]


def means(x: np.ndarray, y: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The means of at most so many equal parts: what a smoothed line follows, since the points of `decimated` are mostly extremes.

    >>> [a.tolist() for a in means(np.arange(4.0), np.array([1.0, 3.0, 5.0, 7.0]), 2)]
    [[0.5, 2.5], [2.0, 6.0]]
    """
    if len(x) <= most:
        return x, y
    starts = np.linspace(0, len(x), most + 1).astype(np.int64)[:-1]
    counts = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts


def decimated_points(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """The same for a list of points.

    >>> decimated_points([(0, 1), (1, 2)], 4)
    [(0, 1), (1, 2)]
    """
    if len(points) <= most:
        return list(points)
    table = np.asarray(points, np.float64)
    x, y = decimated(table[:, 0], table[:, 1], most)
    return list(zip(x.tolist(), y.tolist(), strict=True))
