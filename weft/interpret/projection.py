"""Maps of many points in a plane: PCA and t-SNE."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import UserError
from ..ops.convert import asarray
from ..ops.elementwise import maximum, sign, where
from ..ops.movement import expand_dims, stack
from ..ops.reduce import sum as sum_over
from ..ops.statistics import mean
from ..tensor import Tensor
from ..tracing.jit import jit

MOST = 5000  # points of t-SNE: it compares every point with every other
EXAGGERATION, EXAGGERATED_STEPS = 12.0, 250  # attraction is stronger at first, so that clusters can pass each other
MOMENTUM = (0.5, 0.8)  # during and after the exaggeration
LEAST_GAIN = 0.01
TOLERANCE, MOST_HALVINGS, SHARPEST = 1e-5, 64, 1e12  # of the search for the width of each point's neighbourhood


def pca(x: Any, dimensions: int = 2) -> np.ndarray:
    """The coordinates along the principal axes, the axis of largest variance first.

    The largest coordinate of each axis is positive, so that the same points always give the same map.

    >>> pca([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]], 1).ravel().round(9).tolist()
    [-5.0, 0.0, 5.0]
    """
    points = _points("pca", x, dimensions)
    centred = points - points.mean(axis=0)
    left, values, axes = np.linalg.svd(centred, full_matrices=False)
    found = left[:, :dimensions] * values[:dimensions]
    axes = axes[: found.shape[1]]  # their signs are arbitrary: the largest part of each is made positive
    highest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
    return np.asarray(np.pad(found * np.where(highest < 0, -1.0, 1.0), ((0, 0), (0, dimensions - found.shape[1]))))


def tsne(
    x: Any,
    dimensions: int = 2,
    perplexity: float = 30.0,
    steps: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """t-SNE (van der Maaten and Hinton 2008): a map in which points that are near each other in x are near, too.

    It begins with the PCA, so `seed` only decides about equal points. Every step compares all pairs in one compiled program: seconds for
    2,000 points. `progress(step, steps)` is called now and then.
    """
    points = _points("tsne", x, dimensions)
    if len(points) > MOST:
        raise UserError("tsne", f"at most {MOST:,} points are required, got {len(points):,}. Take a sample of them.")
    if not perplexity >= 1.0 or len(points) <= 3.0 * perplexity:
        raise UserError(
            "tsne",
            f"a perplexity from 1 to a third of the number of points ({len(points):,}) is required, got {perplexity}.",
        )
    start = pca(points, dimensions)
    start = start / max(float(start[:, 0].std()), 1e-12) * 1e-4
    start += 1e-6 * np.random.default_rng(seed).standard_normal(start.shape)
    near = asarray(affinities(points, perplexity).astype(np.float32))
    y = asarray(start.astype(np.float32))
    speed, gains = asarray(np.zeros_like(start, np.float32)), asarray(np.ones_like(start, np.float32))
    rate = max(len(points) / EXAGGERATION / 4.0, 50.0)
    for step in range(steps):
        early = step < EXAGGERATED_STEPS
        facts = np.array([EXAGGERATION if early else 1.0, MOMENTUM[not early], rate], np.float32)
        y, speed, gains = _step(near, y, speed, gains, asarray(facts))
        if progress is not None and step % 25 == 0:
            progress(step, steps)
    found = y.numpy()
    if not np.isfinite(found).all():
        raise UserError(
            "tsne", "finite points are required: the map has diverged. Scale the points to a spread around 1."
        )
    return np.asarray(found)


def affinities(points: np.ndarray, perplexity: float) -> np.ndarray:
    """The probability of each pair: p_ij = (p_j|i + p_i|j) / 2n with Gaussian p_j|i over the 3 perplexity nearest neighbours.

    The width of each point's Gaussian is found by bisection, so that its entropy is log(perplexity).
    """
    count = len(points)
    squares = _squared_distances(points)
    np.fill_diagonal(squares, np.inf)
    neighbours = min(count - 1, int(3.0 * perplexity + 1))
    near = np.argpartition(squares, neighbours - 1, axis=1)[:, :neighbours]
    shares = _gaussian_shares(np.take_along_axis(squares, near, axis=1), np.log(perplexity))
    found = np.zeros((count, count))
    np.put_along_axis(found, near, shares, axis=1)
    return np.asarray((found + found.T) / (2.0 * count))


def _gaussian_shares(squares: np.ndarray, entropy: float) -> np.ndarray:
    """Shares proportional to exp(-beta d^2) whose entropy is the one required; beta is found for all rows at once."""
    squares = squares - squares.min(axis=1, keepdims=True)
    scale = squares.mean(axis=1, keepdims=True)
    squares = squares / np.where(scale > 0, scale, 1.0)
    beta = np.ones_like(scale)
    low, high = (
        np.zeros_like(beta),
        np.full_like(beta, SHARPEST),
    )  # where too many points are equal, no beta has that entropy
    for _ in range(MOST_HALVINGS):
        weights = np.exp(-squares * beta)
        total = weights.sum(axis=1, keepdims=True)
        shares = weights / total
        excess = np.log(total) + beta * (squares * shares).sum(axis=1, keepdims=True) - entropy
        if np.abs(excess).max() < TOLERANCE:
            break
        low, high = np.where(excess > 0, beta, low), np.where(excess > 0, high, beta)
        beta = np.where(high == SHARPEST, np.minimum(2.0 * beta, SHARPEST), (low + high) / 2.0)
    return np.asarray(shares)


def _squared_distances(points: np.ndarray) -> np.ndarray:
    lengths = (points * points).sum(axis=1)
    return np.asarray(np.maximum(lengths[:, None] + lengths[None, :] - 2.0 * points @ points.T, 0.0))


@jit
def _step(near: Tensor, y: Tensor, speed: Tensor, gains: Tensor, facts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of gradient descent with momentum and a gain for each coordinate, on the divergence of p and q."""
    exaggeration, momentum, rate = facts[0], facts[1], facts[2]
    columns = [y[:, i] for i in range(y.shape[1])]  # a coordinate at a time: the loops over pairs are contiguous
    apart = [expand_dims(c, 1) - expand_dims(c, 0) for c in columns]
    closeness = 1.0 / (1.0 + functools.reduce(operator.add, [a * a for a in apart]))
    whole = sum_over(closeness) - float(y.shape[0])  # without the pairs of a point with itself, which add nothing below
    pull = (exaggeration * near - closeness / whole) * closeness
    slope = 4.0 * stack([sum_over(pull * a, axis=1) for a in apart], axis=1)
    gains = maximum(where(sign(slope) == sign(speed), 0.8 * gains, gains + 0.2), LEAST_GAIN)
    speed = momentum * speed - rate * gains * slope
    y = y + speed
    return y - mean(y, axis=0, keepdims=True), speed, gains


def _points(where_: str, x: Any, dimensions: int) -> np.ndarray:
    points = np.asarray(x, np.float64)
    if points.ndim != 2 or len(points) < 2 or points.shape[1] < 1:
        raise UserError(where_, f"two points or more, as rows of a matrix, are required, got shape {points.shape}.")
    if dimensions < 1:
        raise UserError(where_, f"a dimension or more is required, got {dimensions}.")
    if not np.isfinite(points).all():
        raise UserError(where_, "finite numbers are required, got nan or infinity among the points.")
    return points
