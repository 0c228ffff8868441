"""Weight sharing (trained quantization): the weights of a layer are clustered by k-means, and each is replaced by the centroid of its cluster.

    share(model, bits=5)                        # 31 centroids per layer, and zero for pruned weights

The centroids are parameters: training continues, and the gradient of a centroid is the sum of the gradients of its weights.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from .codebooks import Codebook
from .layers import by_weight, weights_of
from .masks import Mask

Start = Literal["linear", "density", "random"]


def share(model: Module, bits: int | dict[str, int], *, start: Start = "linear", seed: int = 0) -> dict[str, int]:
    """Give the weights of every layer 2^bits - 1 shared values besides zero, which pruned weights have; returns the number of values of each."""
    wanted = by_weight("share", "bits", bits, model)
    known, counts = weights_of(model), {}
    for path, width in wanted.items():
        if width not in range(1, 9):
            raise UserError("share", f"1 to 8 bits are required, got {width} for {path}.")
        value = known[path].finite_value("share")
        before = known[path].parametrization
        if not isinstance(before, Mask | None):
            raise UserError(
                "share", f"a weight or a pruned weight is required, got {path}, which is a {type(before).__name__}."
            )
        keep = before.mask.numpy() if isinstance(before, Mask) else np.ones(value.shape, np.bool_)
        centroids, members = kmeans(value[keep], (1 << int(width)) - 1, start, seed)
        indices = np.zeros(value.shape, np.int32)
        indices[keep] = members + 1
        known[path].replace(Codebook(centroids, indices))
        counts[path] = len(centroids)
    return counts


def kmeans(
    values: np.ndarray, clusters: int, start: Start = "linear", seed: int = 0, steps: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """Cluster numbers by k-means: the centroids in order, and the cluster of each number. Empty clusters are dropped.

    Initialization: "linear" spaces centroids evenly from the minimum to the maximum, which represents the few large weights well, as in Deep Compression;
    "density" evenly in rank; "random" picks some of the numbers.
    """
    given = np.asarray(values, np.float64).ravel()
    if given.size == 0 or not np.isfinite(given).all():
        what = "some that are nan or infinite" if given.size else "none"
        raise UserError("kmeans", f"finite numbers are required, got {what}.")
    order = np.argsort(given, kind="stable")
    ordered = given[order]
    centroids = _settled(ordered, _first_centroids(ordered, clusters, start, seed), steps)
    while len(centroids) < min(
        clusters, len(np.unique(ordered))
    ):  # empty clusters were dropped: split those with the largest errors
        centroids = _settled(ordered, _split(ordered, centroids, clusters - len(centroids)), steps)
    members = np.empty(given.size, np.int32)
    members[order] = np.repeat(np.arange(len(centroids), dtype=np.int32), np.diff(_edges(ordered, centroids)))
    return centroids.astype(np.asarray(values).dtype), members


def _settled(ordered: np.ndarray, centroids: np.ndarray, steps: int) -> np.ndarray:
    """Move centroids to the means of their members until convergence; centroids without members are dropped."""
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    for _ in range(steps):
        edges = _edges(ordered, centroids)
        counts = np.diff(edges)
        moved = (np.diff(sums[edges]) / np.maximum(counts, 1))[counts > 0]
        if len(moved) == len(centroids) and np.array_equal(moved, centroids):
            break
        centroids = moved
    return centroids[np.diff(_edges(ordered, centroids)) > 0]


def _split(ordered: np.ndarray, centroids: np.ndarray, most: int) -> np.ndarray:
    """Split the clusters with the largest squared errors, up to `most` of them, each into its lower and its upper half."""
    edges = _edges(ordered, centroids)
    parts = [ordered[a:b] for a, b in pairwise(edges)]
    errors = np.array([((part - part.mean()) ** 2).sum() if part[0] < part[-1] else -1.0 for part in parts])
    chosen = [i for i in np.argsort(-errors)[:most] if errors[i] >= 0]
    halves = [
        half for i in chosen for half in (parts[i][parts[i] < parts[i].mean()], parts[i][parts[i] >= parts[i].mean()])
    ]
    return np.unique([*np.delete(centroids, chosen), *(half.mean() for half in halves if len(half))])


def _edges(ordered: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """The index in the ordered numbers where each cluster begins, and where the last one ends."""
    inner = np.searchsorted(ordered, (centroids[1:] + centroids[:-1]) / 2)
    return np.concatenate([[0], inner, [len(ordered)]])


def _first_centroids(ordered: np.ndarray, clusters: int, start: Start, seed: int) -> np.ndarray:
    if start == "linear":
        return np.unique(np.linspace(ordered[0], ordered[-1], clusters))
    if start == "density":
        return np.unique(np.quantile(ordered, (np.arange(clusters) + 0.5) / clusters))
    if start == "random":
        return np.sort(
            np.random.default_rng(seed).choice(
                np.unique(ordered), min(clusters, len(np.unique(ordered))), replace=False
            )
        )
    raise UserError("kmeans", f"start must be 'linear', 'density' or 'random', got {start!r}.")
