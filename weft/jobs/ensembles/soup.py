"""Averages of weights ("model soups", Wortsman et al. 2022): one network whose weights are the means of those of several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ... import data, nn
from ...nn.norm import BatchNorm
from ...ops.convert import asarray
from ...tensor import Tensor
from ...tracing.jit import jit

MOST_BATCHES = 200  # that statistics of batch norm are estimated from

Weights = Mapping[str, np.ndarray]
Score = tuple[float, float]  # higher is better


def mean_weights(members: Sequence[Weights]) -> dict[str, np.ndarray]:
    """The mean of each tensor, in float64; integers, such as counters, are those of the first.

    >>> mean_weights([{"w": np.float32([1, 2])}, {"w": np.float32([3, 6])}])["w"].tolist()
    [2.0, 4.0]
    """
    return {
        name: np.mean([one[name] for one in members], axis=0, dtype=np.float64).astype(value.dtype)
        if value.dtype.kind == "f"
        else value
        for name, value in members[0].items()
    }


def greedy_soup(scores: Sequence[Score], score_of: Callable[[Sequence[int]], Score]) -> list[int]:
    """The members of a greedy soup: the best one, and then each, from good to bad, that does not make the mean worse.

    >>> greedy_soup([(0.7, 0), (0.9, 0), (0.8, 0)], lambda chosen: (0.95 if chosen == [1, 2] else 0.5, 0))
    [1, 2]
    """
    order = sorted(range(len(scores)), key=lambda i: scores[i], reverse=True)
    chosen, best = order[:1], scores[order[0]]
    for candidate in order[1:]:
        found = score_of([*chosen, candidate])
        if found >= best:
            chosen, best = [*chosen, candidate], found
    return chosen


def estimate_statistics(model: nn.Module, prepare: nn.Module, batches: data.Loader) -> bool:
    """Re-estimate running means and variances of batch norm from training examples: those of the members do not fit averaged weights.

    Every batch counts the same. Returns whether there was anything to estimate.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.track]
    if not layers:
        return False
    momentum = [layer.momentum for layer in layers]
    model.eval()
    prepare.eval()
    for layer in layers:
        layer.training, layer.momentum = True, 1.0  # the running statistics are then those of the last batch

    @jit
    def statistics(x: Tensor) -> list[Tensor]:
        model(prepare(x))
        return [tensor * 1.0 for layer in layers for tensor in (layer.mean, layer.var)]

    total, count = [np.zeros(1)] * (2 * len(layers)), 0
    for x, _ in batches:
        total = [before + now.numpy().astype(np.float64) for before, now in zip(total, statistics(x), strict=True)]
        count += 1
        if count == MOST_BATCHES:
            break
    for i, layer in enumerate(layers):
        for tensor, value in zip((layer.mean, layer.var), total[2 * i : 2 * i + 2], strict=True):
            tensor.assign(asarray((value / count).astype(tensor.numpy().dtype)))
        layer.training, layer.momentum = False, momentum[i]
    return True
