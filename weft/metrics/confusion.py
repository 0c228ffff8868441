"""Confusion matrices and the scores derived from them.

A confusion matrix counts in [i, j] the examples of class i that are predicted as class j. Counts are exact integers, so that
batches can be added. In all quotients here 0 / 0 is defined as 0.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DEFAULT_FLOAT, bool_, float64, int64
from ..errors import UserError
from ..ops.contract import diagonal
from ..ops.creation import zeros
from ..ops.declare import normal_axis
from ..ops.elementwise import sqrt, where
from ..ops.indexing import scatter
from ..ops.movement import flatten
from ..ops.reduce import argmax, sum
from ..tensor import ArrayLike, Tensor, as_tensor

Average = Literal["binary", "macro", "micro", "weighted", "none"]
AVERAGES = ("binary", "macro", "micro", "weighted", "none")


def as_classes(
    name: str, prediction: ArrayLike, target: ArrayLike, axis: int, threshold: float
) -> tuple[Tensor, Tensor]:
    """Predictions and targets as integer classes of one shape.

    Floats with one axis more than the targets are scores: argmax along the axis. Floats of the shape of the targets are
    probabilities of class 1. Integers and bools are classes.
    """
    found, truth = as_tensor(prediction), as_tensor(target)
    if truth.dtype.is_float:
        raise UserError(name, f"targets that are classes (integers or bools) are required, got {truth._node.type}.")
    if found.dtype.is_float and found.ndim == truth.ndim + 1:
        found = argmax(found, axis=normal_axis(name, axis, found.ndim))
    elif found.dtype.is_float:
        found = found > threshold
    if found.shape != truth.shape:
        raise UserError(
            name,
            f"predictions of the shape {truth.shape} of the targets, or scores with an axis of classes more, are required, "
            f"got shape {as_tensor(prediction).shape}.",
        )
    return found.astype(int64), truth.astype(int64)


def class_count(name: str, prediction: ArrayLike, target: ArrayLike, axis: int, classes: int | None) -> int:
    """The number of classes: as given, or that of the scores, or two for probabilities and bools."""
    found, truth = as_tensor(prediction), as_tensor(target)
    if classes is not None:
        if classes < 1:
            raise UserError(name, f"the number of classes must be 1 or more, got {classes}.")
        return classes
    if found.dtype.is_float and found.ndim == truth.ndim + 1:
        return found.shape[normal_axis(name, axis, found.ndim)]
    if found.dtype.is_float or found.dtype is bool_:
        return 2
    raise UserError(name, "class indices require the number of classes: classes=...")


def count_pairs(found: Tensor, truth: Tensor, classes: int, ignore_index: int | None) -> Tensor:
    """The confusion matrix of integer classes, (classes, classes) of int64; a class out of range raises an error at run time."""
    found, truth = flatten(found), flatten(truth)
    keep = truth == truth if ignore_index is None else truth != ignore_index
    places = [where(keep, truth, 0), where(keep, found, 0)]
    return scatter(zeros((classes, classes), dtype=int64), keep.astype(int64), places, (0, 1), "add")


def ratio(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole in float64, 0 where whole is 0."""
    part, whole = part.astype(float64), whole.astype(float64)
    return where(whole == 0.0, 0.0, part / where(whole == 0.0, 1.0, whole))


def rounded(x: Tensor) -> Tensor:
    """A result as the default float."""
    return x.astype(DEFAULT_FLOAT)


# --- what follows from a confusion matrix --------------------------------------------------------------------------------------


def accuracy_of(matrix: Tensor) -> Tensor:
    """The accuracy of a confusion matrix."""
    return rounded(ratio(sum(diagonal(matrix)), sum(matrix)))


def averaged_score(name: str, matrix: Tensor, average: Average, fp_weight: float, fn_weight: float) -> Tensor:
    """tp / (tp + fp_weight * fp + fn_weight * fn) of each class, averaged.

    Binary: of class 1. Micro: of the total counts. Macro: the mean over the classes that occur in targets or predictions.
    Weighted: by their frequency in targets. None: one value per class.
    """
    if average not in AVERAGES:
        raise UserError(name, f"the average must be one of {', '.join(AVERAGES)}, got {average!r}.")
    if average == "binary" and matrix.shape[0] != 2:
        raise UserError(
            name, f"{matrix.shape[0]} classes need average='macro', 'micro', 'weighted' or 'none', got 'binary'."
        )
    right, found, truth = (m.astype(float64) for m in (diagonal(matrix), sum(matrix, axis=0), sum(matrix, axis=1)))
    whole = right + fp_weight * (found - right) + fn_weight * (truth - right)
    if average == "micro":
        return rounded(ratio(sum(right), sum(whole)))
    each = ratio(right, whole)
    if average == "none":
        return rounded(each)
    if average == "binary":
        return rounded(each[1])
    weight = truth if average == "weighted" else (found + truth > 0.0).astype(float64)
    return rounded(ratio(sum(each * weight), sum(weight)))


def mcc_of(matrix: Tensor) -> Tensor:
    """The Matthews correlation coefficient, for any number of classes (Gorodkin 2004)."""
    counts = matrix.astype(float64)
    total, found, truth = sum(counts), sum(counts, axis=0), sum(counts, axis=1)
    joint = sum(diagonal(counts)) * total - sum(found * truth)
    return rounded(ratio(joint, sqrt((total * total - sum(found * found)) * (total * total - sum(truth * truth)))))


def kappa_of(matrix: Tensor) -> Tensor:
    """(agreement - agreement by chance) / (1 - agreement by chance) (Cohen 1960)."""
    counts = matrix.astype(float64)
    total = sum(counts)
    right = sum(diagonal(counts)) * total
    chance = sum(sum(counts, axis=0) * sum(counts, axis=1))
    return rounded(ratio(right - chance, total * total - chance))
