"""The task: loss, metrics, and which of them selects the best epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import metrics as measures
from ..data.label_kinds import LabelKind, kind_of
from ..errors import UserError
from ..metrics import Mean, Metric
from ..nn.losses import loss as find_loss
from ..records import dataclass
from ..report.best_epoch import SELECTION_METRICS, ranking_key
from ..tensor import Tensor
from .names import Loss, Metrics, Row


class _F1OfLogits(measures.ConfusionMatrix):
    """The F1 score of all yes-or-no decisions together: examples that can have several classes, a logit for each."""

    def __init__(self) -> None:
        super().__init__(2, threshold=0.0)

    def value(self) -> Tensor:
        return self.f1()


METERS: dict[str, Callable[[], Metric]] = {
    "accuracy": measures.Accuracy,
    "token_accuracy": measures.Accuracy,
    "binary_accuracy": lambda: measures.Accuracy(threshold=0.0),  # of a single logit: above 0 is class 1
    "top5": lambda: measures.TopK(5),
    "f1": lambda: _F1OfLogits(),
    "mae": lambda: measures.MeanOf(measures.mae),
    "mse": lambda: measures.MeanOf(measures.mse),
}


@dataclass(frozen=True)
class Task:
    """A loss and constructors of its metrics."""

    loss: Loss
    makers: Mapping[str, Callable[[], Metric]]

    def meters(self) -> dict[str, Metric]:
        """New metrics; the loss comes first."""
        return {"loss": Mean(), **{name: make() for name, make in self.makers.items()}}


def task_of(labels: np.ndarray, loss: str | Loss | None, metrics: Metrics | None) -> Task:
    """The task given by name, else by the labels: floats are a regression, integers are classes, a bool for each class several classes.

    A row of integers for each example is a text. Its best epoch is the one with the lowest loss, not the highest token accuracy: a network
    that overfits still predicts a few more tokens correctly long after its probabilities have become worse.
    """
    is_text = labels.dtype.kind in "iu" and labels.ndim == 2
    usual_loss, usual_metrics = _TEXT if is_text else _USUAL[kind_of(labels)]
    return Task(
        find_loss(usual_loss if loss is None else loss), makers_of(usual_metrics if metrics is None else metrics)
    )


_TEXT = ("cross_entropy", ("token_accuracy",))
_USUAL: dict[LabelKind, tuple[str, tuple[str, ...]]] = {
    "class": ("cross_entropy", ("accuracy",)),
    "classes": ("bce_with_logits", ("binary_accuracy", "f1")),
    "numbers": ("mse", ("mae",)),
}


def makers_of(metrics: Metrics) -> dict[str, Callable[[], Metric]]:
    """The constructors of these metrics; unknown names are rejected."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    unknown = [n for n in metrics if n not in METERS]
    if unknown:
        raise UserError("fit", f"there is no metric {unknown[0]!r} to train with. Known: {', '.join(METERS)}.")
    return {name: METERS[name] for name in metrics}


def prediction_of(output: Any) -> Tensor:
    """The prediction of a network; recurrent networks return their state too."""
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def match_target_shape(prediction: Tensor, y: Tensor) -> Tensor:
    """Predictions of shape (n, 1) in the shape (n,) of float targets; all others unchanged."""
    return prediction.reshape(y.shape) if y.dtype.is_float and prediction.shape == (*y.shape, 1) else prediction


def _merit(row: Row) -> tuple[float, float]:
    """The score of an epoch: higher is better."""
    return ranking_key(next(name for name in SELECTION_METRICS if name in row), row)


def is_better(row: Row, best: Row) -> bool:
    return not best or _merit(row) > _merit(best)


def best_epochs(history: Sequence[Row], count: int) -> list[int]:
    """The indices of the best epochs; the earlier of equal ones."""
    order = sorted(history, key=_merit, reverse=True)
    return [int(row["epoch"]) for row in order[:count]]


def epoch_text(row: Row, epochs: int) -> str:
    """An epoch as a line of text."""
    words = [f"epoch {int(row['epoch']):{len(str(epochs))}}/{epochs}"]
    for part, label in (("train", "train"), ("validation", "validation")):
        numbers = {n.removeprefix(f"{part}_"): v for n, v in row.items() if n.startswith(f"{part}_")}
        if numbers:
            words.append(f"{label}: " + ", ".join(_number(n, v) for n, v in numbers.items()))
    words.append(f"{row['examples_per_second']:,.0f} a second")
    return " | ".join([*words, f"{row['seconds']:.1f} s"])


def _number(name: str, value: float) -> str:
    share = name.endswith("accuracy") or name in ("top5", "f1")
    return f"{name.replace('_', ' ')} " + (f"{100 * value:.2f} %" if share else f"{value:.4f}")
