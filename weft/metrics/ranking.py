"""Ranking and calibration metrics: ROC AUC, average precision, calibration error."""

from __future__ import annotations

from ..dtypes import bool_, float64, int64
from ..errors import UserError
from ..ops.creation import zeros
from ..ops.declare import as_float
from ..ops.elementwise import abs, ceil, maximum, where
from ..ops.indexing import scatter, take
from ..ops.math import clip
from ..ops.movement import flatten
from ..ops.reduce import argmax, cumulative_sum, max, sum
from ..ops.sorting import argsort, searchsorted
from ..tensor import ArrayLike, Tensor, as_tensor
from .confusion import ratio, rounded


def roc_auc(prediction: ArrayLike, target: ArrayLike) -> Tensor:
    """The area under the ROC curve: the probability that a positive has a higher score than a negative, ties counting half.

    Exact, by ranks. Targets are 1 or 0. Without a positive or without a negative it is nan.

    >>> roc_auc([0.1, 0.4, 0.4, 0.8], [0, 0, 1, 1]).item()
    0.875
    """
    scores, truth = _ranked("roc_auc", prediction, target)
    ordered = take(scores, argsort(scores))
    below, upto = searchsorted(ordered, scores), searchsorted(ordered, scores, side="right")
    positives = sum(truth, dtype=int64)
    # Twice the rank sum of the positives, minus the ranks among themselves: an exact integer.
    twice = sum(where(truth, below + upto + 1, 0)) - positives * (positives + 1)
    return rounded(twice.astype(float64) / (2 * positives * (truth.size - positives)).astype(float64))


def average_precision(prediction: ArrayLike, target: ArrayLike) -> Tensor:
    """The area under the precision-recall curve, as a step function: the mean precision at the scores of the positives.

    Targets are 1 or 0. Without a positive it is nan.

    >>> average_precision([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1]).item()
    0.75
    """
    scores, truth = _ranked("average_precision", prediction, target)
    order = argsort(scores)
    below = searchsorted(take(scores, order), scores)
    before = cumulative_sum(take(truth, order).astype(int64), include_initial=True)
    positives = sum(truth, dtype=int64)
    precision = ratio(positives - take(before, below), truth.size - below)
    return rounded(sum(where(truth, precision, 0.0)) / positives.astype(float64))


def _ranked(name: str, prediction: ArrayLike, target: ArrayLike) -> tuple[Tensor, Tensor]:
    scores, truth = as_float(as_tensor(prediction), name), as_tensor(target)
    if scores.shape != truth.shape:
        raise UserError(name, f"one score for each target is required, got shapes {scores.shape} and {truth.shape}.")
    return flatten(scores), flatten(truth if truth.dtype is bool_ else truth > 0)


def calibration_error(prediction: ArrayLike, target: ArrayLike, *, bins: int = 15) -> Tensor:
    """The expected calibration error: sum over bins of their fraction times |accuracy - mean confidence| (Guo et al. 2017).

    Predictions are probabilities, (..., classes), or of class 1 in the shape of the targets. The bins are equal parts of [0, 1],
    each including its upper end.
    """
    if bins < 1:
        raise UserError("calibration_error", f"1 bin or more is required, got {bins}.")
    p, truth = as_float(as_tensor(prediction), "calibration_error"), as_tensor(target).astype(int64)
    if p.shape == truth.shape:
        confidence, found = maximum(p, 1.0 - p), (p > 0.5).astype(int64)
    elif p.shape[:-1] == truth.shape:
        confidence, found = max(p, axis=-1), argmax(p, axis=-1)
    else:
        raise UserError(
            "calibration_error",
            f"probabilities of the shape of the targets, or with an axis of classes behind, are required, "
            f"got {p.shape} and {truth.shape}.",
        )
    sure, right = flatten(confidence).astype(float64), flatten(found == truth).astype(float64)
    place = clip(ceil(sure * bins) - 1.0, 0.0, bins - 1.0).astype(int64)
    # The fraction of a bin times its gap is the sum of the gaps of its examples, divided by the total count.
    gaps = scatter(zeros(bins, dtype=float64), right - sure, [place], (0,), "add")
    return rounded(sum(abs(gaps)) / float(sure.size))
