"""Classification metrics.

Predictions are scores with one axis more than the targets (argmax along `axis`), probabilities of class 1 of the shape of the
targets (compared with `threshold`), or classes. Targets equal to `ignore_index` are ignored. 0 / 0 is defined as 0: the recall of
a class that never occurs, the accuracy of an empty batch.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from ..dtypes import int64
from ..errors import UserError
from ..ops.creation import iota
from ..ops.declare import normal_axis
from ..ops.elementwise import where
from ..ops.indexing import pick
from ..ops.movement import expand_dims, squeeze
from ..ops.reduce import sum
from ..tensor import ArrayLike, Tensor, as_tensor
from .confusion import (
    Average,
    as_classes,
    averaged_score,
    class_count,
    count_pairs,
    kappa_of,
    mcc_of,
    ratio,
    rounded,
)


def accuracy(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    axis: int = -1,
    threshold: float = 0.5,
    ignore_index: int | None = None,
) -> Tensor:
    """The fraction of correct predictions.

    >>> accuracy([[0.1, 0.9], [0.8, 0.2]], [1, 1]).item()
    0.5
    """
    return rounded(ratio(*count_correct(prediction, target, axis, threshold, ignore_index)))


def count_correct(
    prediction: ArrayLike, target: ArrayLike, axis: int, threshold: float, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """The numbers of correct and of all predictions."""
    found, truth = as_classes("accuracy", prediction, target, axis, threshold)
    keep = truth == truth if ignore_index is None else truth != ignore_index
    return sum((found == truth) & keep, dtype=int64), sum(keep, dtype=int64)


def top_k_accuracy(
    prediction: ArrayLike, target: ArrayLike, *, k: int = 5, axis: int = -1, ignore_index: int | None = None
) -> Tensor:
    """The fraction of targets among the k highest scores; of equal scores the lower class comes first.

    >>> top_k_accuracy([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], [2, 2], k=2).item()
    0.5
    """
    return rounded(ratio(*count_top(prediction, target, k, axis, ignore_index)))


def count_top(
    prediction: ArrayLike, target: ArrayLike, k: int, axis: int, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """The number of targets among the k highest scores, and of all targets."""
    scores, truth = as_tensor(prediction), as_tensor(target)
    axis = normal_axis("top_k_accuracy", axis, scores.ndim)
    if not 1 <= k <= scores.shape[axis]:
        raise UserError("top_k_accuracy", f"k must be between 1 and {scores.shape[axis]}, the classes, got {k}.")
    expected = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    if truth.shape != expected or not truth.dtype.is_integer:
        raise UserError("top_k_accuracy", f"integer classes of shape {expected} are required, got {truth._node.type}.")
    keep = truth == truth if ignore_index is None else truth != ignore_index
    place = expand_dims(where(keep, truth, 0), axis=axis)
    own = pick(scores, place, axis, wraps=False)
    # Counting the higher scores needs no sorting: it is a sum over the classes.
    shape = [-1 if i == axis else 1 for i in range(scores.ndim)]
    earlier = iota(scores.shape[axis]).reshape(shape) < place
    ahead = sum((scores > own) | ((scores == own) & earlier), axis=axis, dtype=int64)
    hit = (ahead < k) & squeeze(own == own, axis)
    return sum(hit & keep, dtype=int64), sum(keep, dtype=int64)


class CountOptions(TypedDict, total=False):
    """How predictions and targets are counted; see `confusion_matrix` for the defaults."""

    classes: int | None
    axis: int
    threshold: float
    ignore_index: int | None


def confusion_matrix(prediction: ArrayLike, target: ArrayLike, **options: Unpack[CountOptions]) -> Tensor:
    """The number of examples of class i (row) predicted as class j (column).

    Options, which all scores below take too: `classes`, their number, is required if predictions are class indices; `axis`, the
    axis of the scores of the classes, is -1, for `mean_iou` and `dice_score` 1; a probability above `threshold`, 0.5, is class 1;
    targets equal to `ignore_index` are ignored.

    >>> confusion_matrix([0, 1, 1], [0, 0, 1], classes=2).tolist()
    [[1, 1], [0, 1]]
    """
    return _counted("confusion_matrix", prediction, target, **options)


def _counted(
    name: str,
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    classes: int | None = None,
    axis: int = -1,
    threshold: float = 0.5,
    ignore_index: int | None = None,
) -> Tensor:
    """The confusion matrix; errors begin with the name of the metric that needs it."""
    count = class_count(name, prediction, target, axis, classes)
    found, truth = as_classes(name, prediction, target, axis, threshold)
    return count_pairs(found, truth, count, ignore_index)


def precision(
    prediction: ArrayLike, target: ArrayLike, *, average: Average = "binary", **options: Unpack[CountOptions]
) -> Tensor:
    """Precision: the fraction of the predictions of a class that are correct. Averages: see `f_beta`."""
    return averaged_score("precision", _counted("precision", prediction, target, **options), average, 1.0, 0.0)


def recall(
    prediction: ArrayLike, target: ArrayLike, *, average: Average = "binary", **options: Unpack[CountOptions]
) -> Tensor:
    """Recall: the fraction of the examples of a class that are predicted as it. Averages: see `f_beta`."""
    return averaged_score("recall", _counted("recall", prediction, target, **options), average, 0.0, 1.0)


def f_beta(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    beta: float = 1.0,
    average: Average = "binary",
    **options: Unpack[CountOptions],
) -> Tensor:
    """(1 + beta²) precision recall / (beta² precision + recall): recall is beta times as important.

    The average is "binary": of class 1 of two; "macro": the mean over the classes that occur in targets or predictions; "weighted":
    the mean weighted by the frequency in targets; "micro": of the total counts; "none": one value per class.
    """
    if not beta > 0.0:
        raise UserError("f_beta", f"beta must be above 0, got {beta}.")
    return averaged_score("f_beta", _counted("f_beta", prediction, target, **options), average, *f_beta_weights(beta))


def f_beta_weights(beta: float) -> tuple[float, float]:
    """The weights of false positives and false negatives in the denominator of the F score."""
    return 1.0 / (1.0 + beta * beta), beta * beta / (1.0 + beta * beta)


def f1(
    prediction: ArrayLike, target: ArrayLike, *, average: Average = "binary", **options: Unpack[CountOptions]
) -> Tensor:
    """2 precision recall / (precision + recall). Averages: see `f_beta`.

    >>> f1([0.9, 0.8, 0.1], [1, 0, 1]).item()
    0.5
    """
    return averaged_score("f1", _counted("f1", prediction, target, **options), average, 0.5, 0.5)


def per_class_accuracy(prediction: ArrayLike, target: ArrayLike, **options: Unpack[CountOptions]) -> Tensor:
    """The recall of each class."""
    matrix = _counted("per_class_accuracy", prediction, target, **options)
    return averaged_score("per_class_accuracy", matrix, "none", 0.0, 1.0)


def mean_iou(prediction: ArrayLike, target: ArrayLike, **options: Unpack[CountOptions]) -> Tensor:
    """The mean intersection over union of predicted and true regions over the classes that occur. Scores have classes on axis 1."""
    options.setdefault("axis", 1)
    matrix = _counted("mean_iou", prediction, target, **options)
    return averaged_score("mean_iou", matrix, "macro", 1.0, 1.0)


def dice_score(
    prediction: ArrayLike, target: ArrayLike, *, average: Average = "macro", **options: Unpack[CountOptions]
) -> Tensor:
    """2 |A and B| / (|A| + |B|) of predicted and true regions: `f1`, for images. Scores have classes on axis 1."""
    options.setdefault("axis", 1)
    matrix = _counted("dice_score", prediction, target, **options)
    return averaged_score("dice_score", matrix, average, 0.5, 0.5)


def mcc(prediction: ArrayLike, target: ArrayLike, **options: Unpack[CountOptions]) -> Tensor:
    """The Matthews correlation coefficient: 1 for perfect predictions, 0 for chance."""
    return mcc_of(_counted("mcc", prediction, target, **options))


def cohen_kappa(prediction: ArrayLike, target: ArrayLike, **options: Unpack[CountOptions]) -> Tensor:
    """Cohen's kappa, the agreement corrected for chance: 1 for perfect predictions, 0 for chance."""
    return kappa_of(_counted("cohen_kappa", prediction, target, **options))
