"""Metrics over many batches: objects with counts that are updated, also inside a compiled step, read, and set back.

    seen = metrics.Accuracy()

    @weft.jit
    def step(x, y):
        prediction = model(x)
        seen.update(prediction, y)
        ...

    seen.value().item()
    seen.reset()

Counts are integers and sums are float64, so that a batch more is never lost in rounding. Nothing divided by nothing is 0.
Settings are fixed when an object is made: a compiled step does not look at them again.
"""

from __future__ import annotations

from collections.abc import Callable

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
from .classes import count_right, count_top, f_weights
from .counts import Average, as_classes, averaged, count_pairs, kappa_of, mcc_of, ratio, right_of, rounded


def _counter(*shape: int, dtype: DType = int64) -> Tensor:
    """A tensor of zeros that belongs to a metric, made before whatever is being traced."""
    with outside():
        tensor = asarray(zeros(shape, dtype=dtype), copy=True).realize()
    tensor.born = 0
    return tensor


class Metric:
    """What all metrics over many batches can do. A new one keeps tensors, and defines `update` and `value`."""

    def value(self) -> Tensor:
        """The metric of everything since the beginning, or since the last `reset`."""
        raise UserError(type(self).__name__, "a metric needs a method value(self).")

    def reset(self) -> None:
        """Begin anew."""
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
        """Take numbers into account, such as the loss of a batch with its size as the weight."""
        x = _number(values).detach()
        w = broadcast_to(_number(weight), x.shape)
        self.total.assign(self.total + sum(x * w))
        self.weight.assign(self.weight + sum(w))

    def value(self) -> Tensor:
        """The mean of all numbers since the beginning, or since the last `reset`."""
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
        """Take a batch into account: the function of it, as often as it has examples."""
        x, t = as_tensor(prediction), as_tensor(target)
        examples = t.shape[0] if t.ndim else 1
        self.total.assign(self.total + _number(self.function(x, t)).detach() * float(examples))
        self.count.assign(self.count + examples)

    def value(self) -> Tensor:
        """The mean of all examples since the beginning, or since the last `reset`."""
        return rounded(ratio(self.total, self.count))


class Accuracy(Metric):
    """The part of the predictions that are right; see `accuracy`."""

    def __init__(self, *, axis: int = -1, threshold: float = 0.5, ignore_index: int | None = None) -> None:
        self.axis, self.threshold, self.ignore_index = axis, threshold, ignore_index
        self.right, self.count = _counter(), _counter()

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Take a batch into account."""
        right, count = count_right(prediction, target, self.axis, self.threshold, self.ignore_index)
        self.right.assign(self.right + right)
        self.count.assign(self.count + count)

    def value(self) -> Tensor:
        """The part of everything since the beginning, or since the last `reset`."""
        return rounded(ratio(self.right, self.count))


class TopK(Metric):
    """The part of the targets among the k highest scores; see `top_k_accuracy`."""

    def __init__(self, k: int = 5, *, axis: int = -1, ignore_index: int | None = None) -> None:
        if k < 1:
            raise UserError("TopK", f"k must be 1 or more, got {k}.")
        self.k, self.axis, self.ignore_index = k, axis, ignore_index
        self.right, self.count = _counter(), _counter()

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Take a batch into account."""
        right, count = count_top(prediction, target, self.k, self.axis, self.ignore_index)
        self.right.assign(self.right + right)
        self.count.assign(self.count + count)

    def value(self) -> Tensor:
        """The part of everything since the beginning, or since the last `reset`."""
        return rounded(ratio(self.right, self.count))


class ConfusionMatrix(Metric):
    """How many examples of class i were taken for class j, and all metrics that follow from it.

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
        """Take a batch into account."""
        found, truth = as_classes("ConfusionMatrix", prediction, target, self.axis, self.threshold)
        self.counts.assign(self.counts + count_pairs(found, truth, self.classes, self.ignore_index))

    def value(self) -> Tensor:
        """The counts: a row for each class, a column for what it was taken for."""
        return self.counts + 0

    def accuracy(self) -> Tensor:
        """The part of the predictions that are right."""
        return right_of(self.counts)

    def per_class_accuracy(self) -> Tensor:
        """For each class, the part of its examples that were taken for it."""
        return self.recall("none")

    def precision(self, average: Average = "binary") -> Tensor:
        """Of what was taken for a class, the part that is of it."""
        return averaged("precision", self.counts, average, 1.0, 0.0)

    def recall(self, average: Average = "binary") -> Tensor:
        """Of what is of a class, the part that was taken for it."""
        return averaged("recall", self.counts, average, 0.0, 1.0)

    def f_beta(self, beta: float = 1.0, average: Average = "binary") -> Tensor:
        """Precision and recall in one, recall counting beta times as much."""
        return averaged("f_beta", self.counts, average, *f_weights(beta))

    def f1(self, average: Average = "binary") -> Tensor:
        """Precision and recall in one; for regions, the Dice score."""
        return averaged("f1", self.counts, average, 0.5, 0.5)

    def mean_iou(self) -> Tensor:
        """Intersection over union, the mean of the classes that occur."""
        return averaged("mean_iou", self.counts, "macro", 1.0, 1.0)

    def mcc(self) -> Tensor:
        """Matthews's correlation."""
        return mcc_of(self.counts)

    def cohen_kappa(self) -> Tensor:
        """How much more often predictions are right than by chance."""
        return kappa_of(self.counts)


class AUC(Metric):
    """The area under the ROC curve ("roc") or the precision-recall curve ("pr") of probabilities, by counts in equal bins.

    Scores in one bin count as ties: with as many bins as there are different scores it is `roc_auc` or `average_precision`, and
    far fewer come near. Without a positive it is nan, and the ROC's also without a negative.
    """

    def __init__(self, curve: str = "roc", *, bins: int = 1000) -> None:
        if curve not in ("roc", "pr"):
            raise UserError("AUC", f"the curve must be 'roc' or 'pr', got {curve!r}.")
        if bins < 2:
            raise UserError("AUC", f"2 bins or more are required, got {bins}.")
        self.curve, self.bins = curve, bins
        self.negatives, self.positives = _counter(bins), _counter(bins)

    def update(self, prediction: ArrayLike, target: ArrayLike) -> None:
        """Take a batch into account: scores in [0, 1], and targets that are 1 or 0."""
        scores, truth = as_float(as_tensor(prediction), "AUC"), as_tensor(target)
        if scores.shape != truth.shape:
            raise UserError("AUC", f"one score for each target is required, got {scores.shape} and {truth.shape}.")
        place = flatten(clip(floor(scores.astype(float64) * self.bins), 0.0, self.bins - 1.0)).astype(int64)
        positive = flatten(truth if truth.dtype is bool_ else truth > 0).astype(int64)
        self.positives.assign(scatter(self.positives, positive, [place], (0,), "add"))
        self.negatives.assign(scatter(self.negatives, ones_like(positive) - positive, [place], (0,), "add"))

    def value(self) -> Tensor:
        """The area of everything since the beginning, or since the last `reset`."""
        yes, no = self.positives.astype(float64), self.negatives.astype(float64)
        if self.curve == "roc":
            before = cumulative_sum(no) - no
            return rounded(sum(yes * (before + 0.5 * no)) / (sum(yes) * sum(no)))
        right, found = (sum(x) - cumulative_sum(x) + x for x in (yes, yes + no))
        return rounded(sum(yes * ratio(right, found)) / sum(yes))
