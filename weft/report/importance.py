"""Which settings mattered in a set of runs: permutation importance of a random forest, or single effects where runs are few.

With FOREST_RUNS runs or more, a forest learns the metric from the settings. The importance of a setting is how much the squared error on
held-out runs grows when its values are shuffled, as a share of all settings; its error is the standard error over the trees. `explained`
is the share of the variance that the forest predicts on held-out runs: near 0, the importances mean little.

With fewer runs, each setting is looked at alone: the share of the variance that lies between the groups of its values (the correlation ratio of a
one-way ANOVA), with the probability of at least this share by chance (a permutation test).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..records import dataclass
from .forest import forest

FOREST_RUNS = 10
SHUFFLES = 500  # of a permutation test


@dataclass(frozen=True)
class SettingImportance:
    """How much a setting mattered: a share, and either its standard error or the probability of such a share by chance."""

    name: str
    share: float
    error: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class Importances:
    """The importance of settings, the largest first, how it was found, and how much of the variance that explains."""

    method: str  # "forest" or "anova"
    runs: int
    settings: list[SettingImportance]
    explained: float | None = None


def importances(settings: Mapping[str, Sequence[Any]], values: Sequence[float], seed: int = 0) -> Importances | None:
    """The importance of each setting (one value a run) for a metric; None if there is nothing to tell: fewer than 3 runs, or no difference."""
    metric = np.asarray(values, np.float64)
    known = np.isfinite(metric)
    metric = metric[known]
    columns = {name: [v for v, keep in zip(column, known, strict=True) if keep] for name, column in settings.items()}
    columns = {name: column for name, column in columns.items() if len(set(map(repr, column))) > 1}
    if len(metric) < 3 or not columns or np.ptp(metric) == 0:
        return None
    found = _by_forest(columns, metric, seed) if len(metric) >= FOREST_RUNS else _one_by_one(columns, metric, seed)
    found.settings.sort(key=lambda one: -one.share)
    return found


def as_numbers(column: Sequence[Any]) -> np.ndarray:
    """A setting as numbers: numbers by rank, so that 0.001 and 0.01 are as far apart as 0.01 and 0.1; texts in the order of their names."""
    plain = [v for v in column if isinstance(v, int | float) and not isinstance(v, bool)]
    order: list[Any] = sorted(set(plain)) if len(plain) == len(column) else sorted(set(map(repr, column)))
    place = {value: i for i, value in enumerate(order)}
    return np.array([place[v if len(plain) == len(column) else repr(v)] for v in column], np.float64)


def _by_forest(columns: Mapping[str, Sequence[Any]], metric: np.ndarray, seed: int) -> Importances:
    table = np.stack([as_numbers(column) for column in columns.values()], axis=1)
    random = np.random.default_rng(seed + 1)
    sums, counts, growth = np.zeros(len(metric)), np.zeros(len(metric)), []
    for tree in forest(table, metric, seed):
        rows = tree.held_out
        if len(rows) < 2:
            continue
        plain = tree.predict(table[rows])
        sums[rows] += plain
        counts[rows] += 1
        growth.append(_growth(tree.predict, table[rows], metric[rows], plain, random))
    grown = np.array(growth)
    mean, error = grown.mean(axis=0), grown.std(axis=0, ddof=1) / np.sqrt(len(grown))
    total = float(np.maximum(mean, 0).sum()) or 1.0
    seen = counts > 0
    residual = ((metric[seen] - sums[seen] / counts[seen]) ** 2).sum()
    explained = 1.0 - float(residual / ((metric[seen] - metric[seen].mean()) ** 2).sum())
    found = [
        SettingImportance(name, max(0.0, float(m)) / total, float(e) / total)
        for name, m, e in zip(columns, mean, error, strict=True)
    ]
    return Importances("forest", len(metric), found, explained)


def _growth(
    predict: Any, table: np.ndarray, metric: np.ndarray, plain: np.ndarray, random: np.random.Generator
) -> list[float]:
    """How much the squared error grows when each column is shuffled."""
    before, found = float(((plain - metric) ** 2).mean()), []
    for column in range(table.shape[1]):
        shuffled = table.copy()
        shuffled[:, column] = random.permutation(shuffled[:, column])
        found.append(float(((predict(shuffled) - metric) ** 2).mean()) - before)
    return found


def _one_by_one(columns: Mapping[str, Sequence[Any]], metric: np.ndarray, seed: int) -> Importances:
    random = np.random.default_rng(seed)
    found = []
    for name, column in columns.items():
        groups = as_numbers(column).astype(np.int64)
        share = correlation_ratio(groups, metric)
        chance = [correlation_ratio(groups, random.permutation(metric)) for _ in range(SHUFFLES)]
        p = (1 + sum(one >= share - 1e-12 for one in chance)) / (SHUFFLES + 1)
        found.append(SettingImportance(name, share, p_value=p))
    return Importances("anova", len(metric), found)


def correlation_ratio(groups: np.ndarray, values: np.ndarray) -> float:
    """The share of the variance that lies between groups (eta squared).

    >>> correlation_ratio(np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 3.0, 3.0]))
    1.0
    """
    counts = np.bincount(groups)
    means = np.bincount(groups, values) / np.maximum(counts, 1)
    between = float((counts * (means - values.mean()) ** 2).sum())
    return between / float(((values - values.mean()) ** 2).sum())
