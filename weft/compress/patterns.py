"""Structured sparsity patterns that kernels can use: N:M (2:4 on tensor cores), and blocks.

prune_n_of_m(model, 2, 4)                   # of four neighbours along the inputs, the two largest are kept
prune_blocks(model, 0.25, block=(4, 4))     # a quarter of the blocks of 4 outputs x 4 inputs
"""

from __future__ import annotations

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from .layers import by_weight, weights_of
from .prune import densities, largest, set_mask


def prune_n_of_m(model: Module, kept: int = 2, of: int = 4, *, layers: list[str] | None = None) -> dict[str, float]:
    """N:M sparsity: keep the largest `kept` of every `of` consecutive inputs of each output; returns the density of every weight afterwards.

    Without `layers`, weights whose number of inputs is not a multiple of `of` stay dense. Inputs are the second axis of a weight.

    >>> from weft import nn
    >>> prune_n_of_m(nn.Sequential(nn.Linear(8, 3), nn.Linear(3, 2)))
    {'layers.0.weight': 0.5, 'layers.1.weight': 1.0}
    """
    if not 1 <= kept <= of:
        raise UserError("prune_n_of_m", f"1 <= kept <= of is required, got {kept} of {of}.")
    chosen = by_weight("prune_n_of_m", "a pattern", kept if layers is None else dict.fromkeys(layers, kept), model)
    for path in chosen:
        one = weights_of(model)[path]
        inputs = one.value.shape[1]
        if inputs % of and layers is None:
            continue
        if inputs % of:
            raise UserError("prune_n_of_m", f"a multiple of {of} inputs is required, got {inputs} for {path}.")
        set_mask(one, _largest_of_neighbours(np.abs(one.finite_value("prune_n_of_m")), kept, of))
    return densities(model)


def prune_blocks(
    model: Module, density: float | dict[str, float], *, block: tuple[int, int] = (4, 4)
) -> dict[str, float]:
    """Keep the blocks (outputs x inputs) with the largest mean of squares; returns the density of every weight afterwards.

    A weight with more than two axes is a matrix of outputs times everything else. Blocks at its edges may be smaller.
    """
    if min(block) < 1:
        raise UserError("prune_blocks", f"a block of 1 x 1 or more is required, got {block}.")
    wanted = by_weight("prune_blocks", "a density", density, model)
    for path, share in wanted.items():
        if not 0.0 < share <= 1.0:
            raise UserError("prune_blocks", f"a density above 0 and up to 1 is required, got {share} for {path}.")
    for path, share in wanted.items():
        one = weights_of(model)[path]
        set_mask(one, _largest_blocks(one.finite_value("prune_blocks"), share, block))
    return densities(model)


def _largest_of_neighbours(size: np.ndarray, kept: int, of: int) -> np.ndarray:
    lines = np.moveaxis(size, 1, -1)
    groups = lines.reshape(-1, of)
    order = np.argsort(-groups, axis=1, kind="stable")
    keep = np.zeros(groups.shape, np.bool_)
    np.put_along_axis(keep, order[:, :kept], True, axis=1)
    return np.moveaxis(keep.reshape(lines.shape), -1, 1)


def _largest_blocks(value: np.ndarray, density: float, block: tuple[int, int]) -> np.ndarray:
    squares = value.reshape(len(value), -1).astype(np.float64) ** 2
    rows, columns = (np.arange(n) // b for n, b in zip(squares.shape, block, strict=True))
    place = rows[:, None] * (columns[-1] + 1) + columns[None]
    means = np.bincount(place.ravel(), squares.ravel()) / np.bincount(place.ravel())
    keep: np.ndarray = largest(means, density)[place].reshape(value.shape)
    return keep
