"""Several networks on the same examples: how often they agree, where they disagree, and whether one is better than another by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..records import dataclass
from .predictions import Predictions


@dataclass(frozen=True)
class PairTest:
    """McNemar's test of two networks: examples that only one of them classifies correctly, and the probability of a difference as large
    by chance."""

    first_only: int
    second_only: int
    p_value: float


@dataclass(frozen=True)
class Agreement:
    """The agreement of several networks: shares of equal predictions, McNemar's tests, and the examples that they disagree on."""

    equal: np.ndarray  # (networks, networks), shares of examples with the same prediction
    tests: dict[tuple[int, int], PairTest]
    disagree: np.ndarray  # examples, the most split and most confident first


def comparable(found: Sequence[Predictions]) -> bool:
    """Whether all predictions are of the same examples and classes."""
    return all(one.examples == found[0].examples and one.classes == found[0].classes for one in found)


def agreement(found: Sequence[Predictions]) -> Agreement:
    """Compare predictions of the same examples."""
    predicted = np.stack([one.predicted for one in found])
    equal = (predicted[:, None] == predicted[None]).mean(axis=2)
    tests = {
        (i, j): mcnemar(found[i].right, found[j].right) for i in range(len(found)) for j in range(i + 1, len(found))
    }
    split = np.flatnonzero((predicted != predicted[0]).any(axis=0))
    sure = np.stack([one.confidence for one in found]).mean(axis=0)
    wrong = (predicted != found[0].true).sum(axis=0)
    kinds = np.array([len(set(predicted[:, i].tolist())) for i in split], np.int64)
    order = np.lexsort((-sure[split], -wrong[split], -kinds))
    return Agreement(equal, tests, split[order])


def mcnemar(first_right: np.ndarray, second_right: np.ndarray) -> PairTest:
    """The exact two-sided test: of the examples that only one gets right, each network has half by chance.

    >>> mcnemar(np.array([True] * 9 + [False]), np.array([False] * 9 + [True]))
    PairTest(first_only=9, second_only=1, p_value=0.021484375)
    """
    first, second = int((first_right & ~second_right).sum()), int((second_right & ~first_right).sum())
    return PairTest(first, second, _two_sided(min(first, second), first + second))


def _two_sided(fewer: int, total: int) -> float:
    """Twice the probability of at most `fewer` heads in `total` fair throws; by logarithms, since 2**total may be huge."""
    if not total:
        return 1.0
    logs = [math.lgamma(total + 1) - math.lgamma(k + 1) - math.lgamma(total - k + 1) for k in range(fewer + 1)]
    if total <= 1000:
        return float(min(1.0, 2 * sum(math.comb(total, k) for k in range(fewer + 1)) / 2**total))
    return min(1.0, 2 * sum(math.exp(one - total * math.log(2)) for one in logs))
