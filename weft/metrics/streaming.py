"""Streaming metrics: objects that accumulate counts over batches, also inside a compiled step.

    seen = metrics.Accuracy()

    @weft.jit
    def step(x, y):
        prediction = model(x)
        seen.update(prediction, y)
        ...

    seen.value().item()
    seen.reset()

Counts are integers and sums are float64, so that accumulation does not lose precision. 0 / 0 is defined as 0. Settings are fixed
at construction: a compiled step does not read them again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from ..dtypes import DType, bool_, float64, int64
from ..errors import UserError
from ..ops.convert import asarray
from ..ops.creation import ones_like, zeros, zeros_like
from ..ops.declare import as_float
from ..ops.elementwise import astype, floor
from ..ops.indexing import scatter
from ..ops.math import clip
from ..ops.movement import broadcast_to, flatten
from ..ops.reduce import cumulative_sum, sum
from ..tensor import ArrayLike, Tensor, as_tensor
from ..tracing.context import outside
from .classification import count_correct, count_top, f_beta_weights
from .confusion import Average, accuracy_of, as_classes, averaged_score, count_pairs, kappa_of, mcc_of, ratio, rounded


def _counter(*shape: int, dtype: DType = int64) -> Tensor:
    """A tensor of zeros that belongs to a metric, created outside of any traced function."""
    with outside():
        tensor = asarray(zeros(shape, dtype=dtype), copy=True).realize()
    tensor.born = 0
    return tensor


class Metric:
    """Base class of streaming metrics. A subclass has tensors as attributes, and defines `update` and `value`.

    In a data-parallel training each rank updates a metric with its own examples, and the tensors of all ranks are added: they should be counts and
    sums. A largest or least value is declared: `combine = {"most": "max"}` for an attribute `most`.
    """

    combine: ClassVar[Mapping[str, str]] = {}  # "max" or "min" for tensors that ranks do not add, by attribute

    def value(self) -> Tensor:
        """The metric over all batches since the last `reset`."""
        raise UserError(type(self).__name__, "a metric needs a method value(self).")

    def reset(self) -> None:
        """Reset all counts."""
        for tensor in vars(self).values():
            if isinstance(tensor, Tensor):
                tensor.assign(zeros_like(tensor))


class Mean(Metric):
    """sum(w x) / sum(w): the mean of numbers, each with a weight of 1 if none are given.

    >>> loss = Mean()
    >>> loss.update([1.0, 2.0])
    >>> loss.update(6.0, weight=2.0)
    >>> loss.value().item()
    3.75
    """

    def __init__(self) -> None:
        self.total, self.weight = _counter(dtype=float64), _counter(dtype=float64)

    def update(self, values: ArrayLike, *, weight: ArrayLike = 1.0) -> None:
        """Add numbers, such as the loss of a batch with its size as the weight."""
        x = _number(values).detach()
        w = broadcast_to(_number(weight), x.shape)
        self.total.assign(self.total + sum(x * w))
        self.weight.assign(self.weight + sum(w))

    def value(self) -> Tensor:
        """The mean of all numbers since the last `reset`."""
        return rounded(ratio(self.total, self.weight))


def _number(x: ArrayLike) -> Tensor:
    x = as_tensor(x)
    return astype(x if x.dtype is bool_ else as_float(x, "Mean"), float64)


class MeanOf(Metric):
    """The mean over all examples of a function (prediction, target) that is itself a mean over a batch: a loss, an error.

    >>> error = MeanOf(lambda a, b: ((a - b) * (a - b)).mean())
    >>> error.update(as_tensor([1.0, 2.0, 3.0]), as_tensor([1.0, 2.0, 6.0]))
    >>> error.update(as_tensor([0.0]), as_tensor([1.0]))
    >>> error.value().item()
    2.5
    """

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function = function
        self.total, self.count = _counter(dtype=float64), _counter()

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Add a batch: the value of the function, weighted by the number of examples."""
        x, t = as_tensor(prediction), as_tensor(target)
        examples = t.shape[0] if t.ndim else 1
        self.total.assign(self.total + _number(self.function(x, t)).detach() * float(examples))
        self.count.assign(self.count + examples)

    def value(self) -> Tensor:
        """The mean over all examples since the last `reset`."""
        return rounded(ratio(self.total, self.count))


class Accuracy(Metric):
    """The fraction of correct predictions; see `accuracy`."""

    def __init__(self, *, axis: int = -1, threshold: float = 0.5, ignore_index: int | None = None) -> None:
        self.axis, self.threshold, self.ignore_index = axis, threshold, ignore_index
        self.right, self.count = _counter(), _counter()

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Add a batch."""
        right, count = count_correct(prediction, target, self.axis, self.threshold, self.ignore_index)
        self.right.assign(self.right + right)
        self.count.assign(self.count + count)

    def value(self) -> Tensor:
        """The fraction over all batches since the last `reset`."""
        return rounded(ratio(self.right, self.count))


class TopK(Metric):
    """The fraction of targets among the k highest scores; see `top_k_accuracy`."""

    def __init__(self, k: int = 5, *, axis: int = -1, ignore_index: int | None = None) -> None:
        if k < 1:
            raise UserError("TopK", f"k must be 1 or more, got {k}.")
        self.k, self.axis, self.ignore_index = k, axis, ignore_index
        self.right, self.count = _counter(), _counter()

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Add a batch."""
        right, count = count_top(prediction, target, self.k, self.axis, self.ignore_index)
        self.right.assign(self.right + right)
        self.count.assign(self.count + count)

    def value(self) -> Tensor:
        """The fraction over all batches since the last `reset`."""
        return rounded(ratio(self.right, self.count))


class ConfusionMatrix(Metric):
    """The confusion matrix, and all metrics derived from it.

    >>> seen = ConfusionMatrix(2)
    >>> seen.update([0.9, 0.8, 0.2], [1, 0, 1])
    >>> seen.value().tolist(), seen.f1().item()
    ([[0, 1], [1, 1]], 0.5)
    """

    def __init__(
        self, classes: int, *, axis: int = -1, threshold: float = 0.5, ignore_index: int | None = None
    ) -> None:
        if classes < 1:
            raise UserError("ConfusionMatrix", f"the number of classes must be 1 or more, got {classes}.")
        self.classes, self.axis, self.threshold, self.ignore_index = classes, axis, threshold, ignore_index
        self.counts = _counter(classes, classes)

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Add a batch."""
        found, truth = as_classes("ConfusionMatrix", prediction, target, self.axis, self.threshold)
        self.counts.assign(self.counts + count_pairs(found, truth, self.classes, self.ignore_index))

    def value(self) -> Tensor:
        """The counts: a row per true class, a column per predicted class."""
        return self.counts + 0

    def accuracy(self) -> Tensor:
        """The fraction of correct predictions."""
        return accuracy_of(self.counts)

    def per_class_accuracy(self) -> Tensor:
        """The recall of each class."""
        return self.recall("none")

    def precision(self, average: Average = "binary") -> Tensor:
        """The fraction of the predictions of a class that are correct."""
        return averaged_score("precision", self.counts, average, 1.0, 0.0)

    def recall(self, average: Average = "binary") -> Tensor:
        """The fraction of the examples of a class that are predicted as it."""
        return averaged_score("recall", self.counts, average, 0.0, 1.0)

    def f_beta(self, beta: float = 1.0, average: Average = "binary") -> Tensor:
        """The F-beta score: recall is beta times as important as precision."""
        return averaged_score("f_beta", self.counts, average, *f_beta_weights(beta))

    def f1(self, average: Average = "binary") -> Tensor:
        """The F1 score; for regions, the Dice score."""
        return averaged_score("f1", self.counts, average, 0.5, 0.5)

    def mean_iou(self) -> Tensor:
        """The mean intersection over union over the classes that occur."""
        return averaged_score("mean_iou", self.counts, "macro", 1.0, 1.0)

    def mcc(self) -> Tensor:
        """The Matthews correlation coefficient."""
        return mcc_of(self.counts)

    def cohen_kappa(self) -> Tensor:
        """Cohen's kappa."""
        return kappa_of(self.counts)


class AUC(Metric):
    """The area under the ROC curve ("roc") or the precision-recall curve ("pr") of probabilities, by histograms.

    Scores in one bin count as ties: with as many bins as different scores it equals `roc_auc` or `average_precision`; far fewer are a
    good approximation. Without positives it is nan, and for ROC also without negatives.
    """

    def __init__(self, curve: str = "roc", *, bins: int = 1000) -> None:
        if curve not in ("roc", "pr"):
            raise UserError("AUC", f"the curve must be 'roc' or 'pr', got {curve!r}.")
        if bins < 2:
            raise UserError("AUC", f"2 bins or more are required, got {bins}.")
        self.curve, self.bins = curve, bins
        self.negatives, self.positives = _counter(bins), _counter(bins)

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Add a batch: scores in [0, 1], and targets that are 1 or 0."""
        scores, truth = as_float(as_tensor(prediction), "AUC"), as_tensor(target)
        if scores.shape != truth.shape:
            raise UserError("AUC", f"one score for each target is required, got {scores.shape} and {truth.shape}.")
        place = flatten(clip(floor(scores.astype(float64) * self.bins), 0.0, self.bins - 1.0)).astype(int64)
        positive = flatten(truth if truth.dtype is bool_ else truth > 0).astype(int64)
        self.positives.assign(scatter(self.positives, positive, [place], (0,), "add"))
        self.negatives.assign(scatter(self.negatives, ones_like(positive) - positive, [place], (0,), "add"))

    def value(self) -> Tensor:
        """The area over all batches since the last `reset`."""
        yes, no = self.positives.astype(float64), self.negatives.astype(float64)
        if self.curve == "roc":
            before = cumulative_sum(no) - no
            return rounded(sum(yes * (before + 0.5 * no)) / (sum(yes) * sum(no)))
        right, found = (sum(x) - cumulative_sum(x) + x for x in (yes, yes + no))
        return rounded(sum(yes * ratio(right, found)) / sum(yes))
