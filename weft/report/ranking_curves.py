"""Precision and recall, and true and false positives, over all thresholds: curves with their areas."""

from __future__ import annotations

import numpy as np

from ..records import dataclass


@dataclass(frozen=True)
class RankingCurves:
    """Of one class against the others: recall and precision, false positive rate (recall is the other axis), and both areas."""

    recall: np.ndarray
    precision: np.ndarray
    false_positives: np.ndarray  # share of the negatives, at the same thresholds
    average_precision: float
    auc: float


def ranking_curves(scores: np.ndarray, positive: np.ndarray) -> RankingCurves | None:
    """The curves of scores; equal scores are one threshold. None without a positive or without a negative.

    >>> found = ranking_curves(np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, False, False, True]))
    >>> found.average_precision, found.auc
    (0.75, 0.5)
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return None
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)  # the last place of each threshold
    hits = np.cumsum(positive[order])[ends]
    recall, precision = hits / positives, hits / (ends + 1)
    false = (ends + 1 - hits) / negatives
    steps = np.diff(recall, prepend=0.0)
    rise, width = np.concatenate([[0.0], recall]), np.diff(false, prepend=0.0)
    area = float((width * (rise[1:] + rise[:-1]) / 2).sum())
    return RankingCurves(recall, precision, false, float((steps * precision).sum()), area)


def thinned(x: np.ndarray, y: np.ndarray, most: int) -> list[tuple[float, float]]:
    """At most so many points of a curve, evenly spread over x, with the first and the last."""
    if len(x) > most:
        wanted = np.linspace(x[0], x[-1], most)
        keep = np.unique(np.searchsorted(x, wanted).clip(0, len(x) - 1))
        x, y = x[keep], y[keep]
    return [(round(float(a), 5), round(float(b), 5)) for a, b in zip(x, y, strict=True)]
