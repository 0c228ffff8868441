"""Magnitude pruning: the smallest weights are masked, in each layer or in the whole network.

    prune(model, 0.1)                        # a tenth of the weights of every layer is kept
    prune(model, {"fc1": 0.08, "fc3": 0.26}) # layer by layer
    prune(model, 0.1, scope="global")        # a tenth of all weights, wherever they are
    prune(model, 0.02, scope="global", score="lamp")  # density of each layer by layer-adaptive scores

Then retrain: masks are state, so masked weights stay zero. Pruning again only masks more weights; none comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from ..errors import UserError
from ..nn.module import Module
from .layers import Weight, by_weight, check_finite, weights_of
from .masks import Mask

Scope = Literal["layer", "global"]
Score = Literal["magnitude", "lamp"]


def prune(
    model: Module, density: float | dict[str, float], *, scope: Scope = "layer", score: Score = "magnitude"
) -> dict[str, float]:
    """Mask the smallest weights to reach this density; returns the density of every weight afterwards.

    With `score="lamp"` (Lee et al. 2021) a weight's square is divided by the sum of those of its layer that are at least as large. Within one layer
    this is the order of magnitudes; globally it leaves small layers dense and thins out large ones, at very low densities too.

    >>> from weft import nn
    >>> prune(nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 2)), 0.25)
    {'layers.0.weight': 0.25, 'layers.1.weight': 0.25}
    """
    if score not in _SCORES:
        raise UserError("prune", f"score must be {' or '.join(map(repr, _SCORES))}, got {score!r}.")
    scores = {path: _SCORES[score](one.value) for path, one in weights_of(model).items()}
    return prune_by("prune", model, density, scores, scope=scope)


def lamp_scores(weight: np.ndarray) -> np.ndarray:
    """The layer-adaptive scores of a weight: each square, divided by the sum of the squares that are at least as large.

    >>> lamp_scores(np.array([1.0, -2.0, 3.0])).round(3).tolist()
    [0.071, 0.308, 1.0]
    """
    squares = np.square(weight.ravel().astype(np.float64))
    order = np.argsort(squares, kind="stable")
    rest = np.cumsum(squares[order][::-1])[::-1]  # of this one and all larger ones
    scores = np.zeros_like(squares)
    scores[order] = np.divide(squares[order], rest, out=np.zeros_like(rest), where=rest > 0)
    return scores.reshape(weight.shape)


_SCORES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"magnitude": np.abs, "lamp": lamp_scores}


def prune_by(
    where: str, model: Module, density: float | dict[str, float], scores: Mapping[str, np.ndarray], *, scope: Scope
) -> dict[str, float]:
    """Mask the weights with the lowest scores to reach this density; returns the density of every weight afterwards."""
    wanted = by_weight(where, "a density", density, model)
    for path, share in wanted.items():
        if not 0.0 < share <= 1.0:
            raise UserError(where, f"a density above 0 and up to 1 is required, got {share} for {path}.")
        check_finite(where, path, scores[path])
    if scope == "global":
        if isinstance(density, dict):
            raise UserError(
                where, "one density for all weights is required with scope='global', got one for each layer."
            )
        masks = _largest_of_all(where, {path: scores[path] for path in wanted}, density)
    elif scope == "layer":
        masks = [largest(scores[path], share) for path, share in wanted.items()]
    else:
        raise UserError(where, f"scope must be 'layer' or 'global', got {scope!r}.")
    for path, mask in zip(wanted, masks, strict=True):
        set_mask(weights_of(model)[path], mask)
    return densities(model)


def set_mask(one: Weight, keep: np.ndarray) -> None:
    """Mask a weight. Weights masked before stay masked; the values of kept weights are unchanged."""
    before = one.parametrization
    if type(before) is Mask:
        before.mask.assign(before.mask.numpy() & keep)
    elif before is None:
        one.replace(Mask(one.value, keep))
    else:
        raise UserError(
            "prune",
            f"a weight or a pruned weight is required, got {one.path}, which is a {type(before).__name__}. "
            "Prune before it, or make scheduled masks plain with fix_masks.",
        )


def densities(model: Module) -> dict[str, float]:
    """The density (fraction of weights that are not pruned) of every weight of a network."""
    found = {path: one.parametrization for path, one in weights_of(model).items()}
    return {path: 1.0 if made is None else made.density for path, made in found.items()}


def gradual(begin: float, end: float, steps: int) -> list[float]:
    """Densities from `begin` to `end` in `steps` steps, fast at first: the cubic schedule of Zhu and Gupta (2017).

    >>> [round(d, 2) for d in gradual(1.0, 0.1, 3)]
    [0.37, 0.13, 0.1]
    """
    if steps < 1 or not 0.0 < end <= begin <= 1.0:
        raise UserError(
            "gradual", f"densities 0 < end <= begin <= 1 in 1 step or more are required, got {begin}, {end}, {steps}."
        )
    return [end + (begin - end) * (1 - (i + 1) / steps) ** 3 for i in range(steps)]


def largest(size: np.ndarray, density: float) -> np.ndarray:
    """A mask of the largest values, at this density: at least one."""
    count = max(1, round(density * size.size))
    keep = np.zeros(size.size, np.bool_)
    keep[np.argpartition(size.ravel(), size.size - count)[size.size - count :]] = True
    return keep.reshape(size.shape)


def _largest_of_all(where: str, scores: Mapping[str, np.ndarray], density: float) -> list[np.ndarray]:
    keep = largest(np.concatenate([score.ravel() for score in scores.values()]), density)
    parts = np.split(keep, np.cumsum([score.size for score in scores.values()])[:-1])
    for path, part in zip(scores, parts, strict=True):
        if not part.any():
            raise UserError(
                where,
                f"a density that leaves weights in every layer is required: at {density}, {path} would have none.",
            )
    return [part.reshape(score.shape) for part, score in zip(parts, scores.values(), strict=True)]
