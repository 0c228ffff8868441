"""Rounding with error feedback (Frantar et al. 2022, GPTQ): the inputs of a layer are correlated, so weights that are rounded later can compensate for the
error of those rounded before.

For each layer the second moments H = E[x x^T] of its inputs (or patches of them) are collected. After w_i was rounded, the squared error of W x is minimal if the following
weights change by -(w_i - rounded(w_i)) / U_ii * U_ij, with U the Cholesky factor of the inverse of H. Weights of large inputs are rounded first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..nn.linear import Linear
from ..nn.module import Module, state
from ..ops.contract import einsum
from ..ops.conv import normal_padding, per_axis
from ..ops.movement import pad, reshape, stack
from ..tensor import ArrayLike, Tensor, as_tensor
from .folding import channel_axis, groups_of
from .grids import Grid
from .observers import ObservedPlace, run_with
from .taps import BEFORE

DAMPING = 0.01  # times the mean of the diagonal: inputs that never occur have no moments
FACTORIZATION_COST = 1e12  # multiplications of the factorizations of all masks of a layer, about a minute


class MomentObserver(Module):
    """Passes its input on and accumulates the second moments of the inputs of a layer's weights, for each group of its channels."""

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self.total = state((groups_of(layer), _inputs(layer), _inputs(layer)))

    def forward(self, x: ArrayLike) -> ArrayLike:
        patches = _patches(self._layer, as_tensor(x).detach().astype("float32"))
        self.total.assign(self.total + einsum("ngkp,ngjp->gkj", patches, patches))
        return x


def moments(model: Module, layers: Mapping[str, Any], batches: list[Any]) -> dict[str, np.ndarray]:
    """The second moments of the inputs of layers on batches: (groups, inputs of a weight, inputs of a weight)."""
    observers = {
        ObservedPlace(path, layer, BEFORE, channel_axis(layer)): MomentObserver(layer) for path, layer in layers.items()
    }
    run_with(model, observers, batches)
    return {place.path: observer.total.numpy() for place, observer in observers.items()}


def rounded_weight(weight: np.ndarray, grid: Grid, moment: np.ndarray, keep: np.ndarray | None = None) -> np.ndarray:
    """A weight rounded to its grid with error feedback. Where `keep` is false it is pruned: it stays zero."""
    scale, zero = (np.broadcast_to(value, (len(weight),)).reshape(len(moment), -1) for value in (grid.scale, grid.zero))
    rows = weight.reshape(len(moment), len(weight) // len(moment), -1).astype(np.float64)
    kept = np.ones(rows.shape, np.bool_) if keep is None else keep.reshape(rows.shape)
    found = [
        _rounded_rows(w, k, s[:, None], z[:, None], grid, h)
        for w, k, s, z, h in zip(rows, kept, scale, zero, moment, strict=True)
    ]
    return np.asarray(np.stack(found).reshape(weight.shape), np.float32)


def _rounded_rows(
    rows: np.ndarray, keep: np.ndarray, scale: np.ndarray, zero: np.ndarray, grid: Grid, moment: np.ndarray
) -> np.ndarray:
    """Round the rows of weights that share one matrix of moments. Only kept weights can compensate, so each mask needs a factorization of its own; where
    that takes too long there is one for all, and what a pruned weight should have taken over is passed on to the next."""
    masks, mask_of = np.unique(keep, axis=0, return_inverse=True)
    if len(masks) > 1 and (masks.sum(1, dtype=np.float64) ** 3).sum() > FACTORIZATION_COST:
        return _rounded(rows, keep, scale, zero, grid, moment)
    found = np.zeros_like(rows)
    for i, mask in enumerate(masks):
        own, kept = np.flatnonzero(mask_of.ravel() == i), np.flatnonzero(mask)
        places = np.ix_(own, kept)
        found[places] = _rounded(rows[places], keep[places], scale[own], zero[own], grid, moment[np.ix_(kept, kept)])
    return found


def _rounded(
    rows: np.ndarray, keep: np.ndarray, scale: np.ndarray, zero: np.ndarray, grid: Grid, moment: np.ndarray
) -> np.ndarray:
    """Round rows of weights with one factorization."""
    if not rows.size:
        return rows
    order = np.argsort(-np.diag(moment), kind="stable")
    h = moment[np.ix_(order, order)].astype(np.float64)
    damping = DAMPING * np.diag(h).mean() or 1.0
    factor = np.linalg.cholesky(np.linalg.inv(h + damping * np.eye(len(h)))).T
    rows, keep = rows[:, order].copy(), keep[:, order]
    for i in range(rows.shape[1]):
        column = rows[:, i : i + 1]
        nearest = (np.clip(np.rint(column / scale) + zero, grid.low, grid.high) - zero) * scale * keep[:, i : i + 1]
        rows[:, i + 1 :] -= (column - nearest) / factor[i, i] * factor[i, i + 1 :]
        rows[:, i : i + 1] = nearest
    return rows[:, np.argsort(order)]


def _inputs(layer: Any) -> int:
    return int(np.prod(layer.weight.shape[1:]))


def _patches(layer: Any, x: Tensor) -> Tensor:
    """im2col, the inputs of each result: (1, groups, inputs of a weight, results), or with a batch first."""
    if isinstance(layer, Linear):
        return reshape(x, (-1, x.shape[-1])).T[None, None]
    kernel, rank = layer.weight.shape[2:], x.ndim - 2
    stride, dilation = (per_axis("quantize", name, getattr(layer, name), rank) for name in ("stride", "dilation"))
    padding = normal_padding("quantize", layer.padding, x.shape[2:], kernel, stride, dilation)
    x = pad(x, ((0, 0), (0, 0), *padding))
    taps = []
    for tap in np.ndindex(*kernel):
        ends = [n - (k - 1 - t) * d for n, k, t, d in zip(x.shape[2:], kernel, tap, dilation, strict=True)]
        where = [slice(t * d, end, s) for t, d, end, s in zip(tap, dilation, ends, stride, strict=True)]
        taps.append(reshape(x[(slice(None), slice(None), *where)], (*x.shape[:2], -1)))
    return reshape(stack(taps, axis=2), (x.shape[0], groups_of(layer), _inputs(layer), -1))
