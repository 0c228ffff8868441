"""Chooses the range of values that a grid covers: all of them, or less for a finer step. Values are given as a histogram, or exactly with counts of 1.

minmax      all values
percentile  all but the tails
mse         the least mean squared error of rounding and clipping
entropy     the least Kullback-Leibler divergence of the rounded distribution from the original (Migacz 2017)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from ..errors import UserError
from ..records import dataclass
from .grids import Grid, affine, symmetric

Method = Literal["minmax", "percentile", "mse", "entropy"]
Kind = Literal["symmetric", "affine"]
MAKERS: dict[str, Callable[..., Grid]] = {"symmetric": symmetric, "affine": affine}
SHRINKS = np.concatenate([[1.0], np.geomspace(0.98, 0.1, 60)])  # fractions of the whole range to try


@dataclass(frozen=True)
class Values:
    """Values and their counts, one row per channel or one for all; `low` and `high` are the extremes of the rows."""

    points: np.ndarray
    counts: np.ndarray
    low: np.ndarray
    high: np.ndarray
    width: np.ndarray  # of the histogram bins whose centres are the points; 0 for exact values

    @classmethod
    def exact(cls, values: np.ndarray, axis: int | None) -> Values:
        """The values of a tensor, in one row or one per channel."""
        wide = values.astype(np.float64)
        rows = wide.reshape(1, -1) if axis is None else np.moveaxis(wide, axis, 0).reshape(values.shape[axis], -1)
        return cls(rows, np.ones_like(rows), rows.min(1), rows.max(1), np.zeros(len(rows)))


def best_grid(where: str, values: Values, bits: int, kind: Kind, method: Method, axis: int | None, percent: float = 99.99) -> Grid:  # fmt: skip
    """The grid that a method chooses for values."""
    if kind not in MAKERS:
        raise UserError(where, f"a grid must be 'symmetric' or 'affine', got {kind!r}.")
    low, high = chosen_range(where, values, bits, kind, method, percent)
    return MAKERS[kind](bits, *((low, high) if axis is not None else (low[0], high[0])), axis)


def chosen_range(
    where: str, values: Values, bits: int, kind: Kind, method: Method, percent: float = 99.99
) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper end of each row."""
    if method == "minmax":
        return values.low, values.high
    if method == "percentile":
        if not 50.0 < percent <= 100.0:
            raise UserError(where, f"a percentage above 50 and up to 100 is required, got {percent}.")
        return _percentile(values, 100.0 - percent), _percentile(values, percent)
    costs = {"mse": squared_errors, "entropy": divergences}
    if method not in costs:
        raise UserError(where, f"a method must be minmax, percentile, mse or entropy, got {method!r}.")
    tried = [MAKERS[kind](bits, values.low * part, values.high * part, 0) for part in SHRINKS]
    best = SHRINKS[np.argmin([costs[method](values, grid) for grid in tried], axis=0)]
    return values.low * best, values.high * best


def squared_errors(values: Values, grid: Grid) -> np.ndarray:
    """The mean squared error of each row on a grid with a scale per row."""
    scale = grid.scale[:, None].astype(np.float64)
    bottom, top = ((end - grid.zero[:, None]) * scale for end in (grid.low, grid.high))
    clipped = np.clip(values.points, bottom, top)
    rounding = (np.rint(clipped / scale) * scale - clipped) ** 2
    # Within steps finer than the bins of a histogram, values are assumed to be uniform.
    rounding = np.where(scale < 2 * values.width[:, None], scale**2 / 12, rounding)
    total = (values.counts * (rounding + (values.points - clipped) ** 2)).sum(1)
    found: np.ndarray = total / np.maximum(values.counts.sum(1), 1)
    return found


def divergences(values: Values, grid: Grid) -> np.ndarray:
    """The Kullback-Leibler divergence of each row on a grid with a scale per row."""
    return np.array([_divergence(*_histogram(values, row), grid, row) for row in range(len(values.points))])


def _divergence(points: np.ndarray, counts: np.ndarray, grid: Grid, row: int) -> float:
    """The divergence between the values with outliers clipped to the grid, and the counts of each step spread evenly over its values."""
    scale, zero = float(grid.scale[row]), int(grid.zero[row])
    steps = np.rint(points / scale).astype(np.int64) + zero
    inside = (steps >= grid.low) & (steps <= grid.high)
    if not inside.any():
        return np.inf
    first, last = np.flatnonzero(inside)[[0, -1]]
    true = counts[first : last + 1].astype(np.float64)
    groups = steps[first : last + 1] - steps[first]
    filled = true > 0
    mass, size = np.bincount(groups, true), np.bincount(groups, filled)
    spread = np.where(filled, (mass / np.maximum(size, 1))[groups], 0.0)
    true[0] += counts[:first].sum()
    true[-1] += counts[last + 1 :].sum()
    p, q = true / true.sum(), spread / max(spread.sum(), 1e-300)
    used = p > 0
    return float((p[used] * np.log(p[used] / np.maximum(q[used], 1e-12))).sum())


def _histogram(values: Values, row: int, bins: int = 2048) -> tuple[np.ndarray, np.ndarray]:
    if values.width[row] > 0:
        return values.points[row], values.counts[row]
    counts, edges = np.histogram(values.points[row], bins)
    return (edges[1:] + edges[:-1]) / 2, counts


def _percentile(values: Values, percent: float) -> np.ndarray:
    """The percentile of each row."""
    found = np.empty(len(values.points))
    for row, (points, counts) in enumerate(zip(values.points, values.counts, strict=True)):
        order = np.argsort(points, kind="stable")
        reached = np.cumsum(counts[order]) / max(counts.sum(), 1)
        found[row] = points[order][min(np.searchsorted(reached, percent / 100.0), len(points) - 1)]
    return np.clip(found, values.low, values.high)
