"""Evaluation on held-out data: metrics, and files of the run folder with the report made of them."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.label_kinds import kind_of
from ..data.texts import Text
from ..io.files import replace_file
from ..nn.summary import Summary
from ..ops.convert import asarray
from ..ops.statistics import softmax
from ..records import dataclass
from ..report import plots, report
from ..report.evaluation import evaluate_classes, evaluate_labels, evaluate_numbers, write_evaluation
from ..report.predictions import THUMBNAILS, Predictions, digest, log_softmax, write_npz, write_predictions
from ..tensor import Tensor
from ..tracing.jit import jit
from .names import Loss
from .task import match_target_shape, task_of
from .thumbnails import thumbnails

SHOWN = 40  # images of each gallery: samples and worst mistakes
THUMBNAIL_BYTES = 16 << 20  # of all thumbnails of a run
EACH_CLASS = 6  # examples of each class that are classified correctly and kept as thumbnails
Network = Callable[[Any], Tensor]  # from stored inputs to predictions


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of all examples: loss and metrics, recall of each class, and the predictions.

    Predictions of a text are not kept: there are as many as characters, and each is as long as the vocabulary.
    """

    numbers: dict[str, float]
    classes: dict[str, float]
    outputs: np.ndarray | None
    dataset: Any

    def predictions(self, split: str = "") -> Predictions | None:
        """Probabilities and true classes; None for a regression, a text, or outputs that are not one a class."""
        found, data = self.outputs, self.dataset
        if found is None or found.ndim != 2 or found.shape[1] != len(data.classes) or len(data.labels.shape) != 1:
            return None
        true = np.asarray(data.labels[: len(found)])
        examples = digest(true, getattr(data, "indices", None), f"{data.name} {split}")
        return Predictions(np.exp(log_softmax(found)), true, list(data.classes), split, examples)

    @property
    def has_several_classes(self) -> bool:
        """Whether an example may have several classes."""
        return self.outputs is not None and kind_of(self.dataset.labels[:1]) == "classes"

    def label_scores(self) -> list[list[Any]]:
        """Name, examples, precision, recall and F1 of each class, where an example may have several."""
        assert self.outputs is not None
        true = np.asarray(self.dataset.labels[: len(self.outputs)])
        return [list(row) for row in _class_scores(self.outputs, true, self.dataset.classes)]

    def report(self, split: str = "") -> dict[str, Any] | None:
        """Scores of classes, with calibration and curves if each example has one; the errors of a regression; None for a text."""
        known = self.predictions(split)
        if known is not None:
            return evaluate_classes(known)
        if self.outputs is None:
            return None
        if self.has_several_classes:
            return evaluate_labels(self.label_scores(), len(self.outputs), split)
        if self.dataset.classes:
            return None
        true = np.asarray(self.dataset.labels[: len(self.outputs)])
        return evaluate_numbers(true.reshape(len(true), -1), self.outputs.reshape(len(true), -1), split)


def evaluated(
    network: Network, batches: Any, loss: str | Loss | None = None, progress: Callable[[int], None] | None = None
) -> Evaluation:
    """Evaluate a network on all examples of a loader that does not shuffle. `progress` is called with the number that are done."""
    dataset = batches.dataset
    task = task_of(np.asarray(dataset.labels[:1]), loss, None)
    meters, outputs, done = task.meters(), [], 0

    @jit
    def measure(prediction: Tensor, y: Tensor) -> None:
        meters["loss"].update(task.loss(prediction, y), weight=float(y.shape[0]))  # type: ignore[attr-defined]
        for name in task.makers:
            meters[name].update(prediction, y)  # type: ignore[attr-defined]

    for x, y in batches:
        prediction = match_target_shape(network(x), y)
        measure(prediction.detach(), y)
        if not isinstance(dataset, Text):
            outputs.append(prediction.numpy())
        done += int(y.shape[0])
        if progress is not None:
            progress(done)
    numbers = {name: float(meter.value().item()) for name, meter in meters.items()}
    found = np.concatenate(outputs) if outputs else None
    return Evaluation(numbers, _shares(found, dataset), found, dataset)


def _shares(outputs: np.ndarray | None, dataset: Any) -> dict[str, float]:
    if outputs is None or not dataset.classes:
        return {}
    true = np.asarray(dataset.labels[: len(outputs)])
    if kind_of(true) == "classes":
        return {name: recall for name, _, _, recall, _ in _class_scores(outputs, true, dataset.classes)}
    right = np.bincount(true[outputs.argmax(axis=1) == true], minlength=len(dataset.classes))
    every = np.bincount(true, minlength=len(dataset.classes))
    return dict(zip(dataset.classes, (right / np.maximum(every, 1)).tolist(), strict=True))


def _class_scores(
    outputs: np.ndarray, true: np.ndarray, classes: Sequence[str]
) -> list[tuple[str, int, float, float, float]]:
    """Class, examples, precision, recall and F1 where an example can have several classes: a logit above 0 means yes."""
    found = outputs > 0
    right, said, every = (found & true).sum(axis=0), found.sum(axis=0), true.sum(axis=0)
    precision, recall, f1 = (
        right / np.maximum(said, 1),
        right / np.maximum(every, 1),
        2 * right / np.maximum(said + every, 1),
    )
    columns = (map(int, every), map(float, precision), map(float, recall), map(float, f1))
    return list(zip(classes, *columns, strict=True))


def write_results(
    folder: str | os.PathLike[str], found: Evaluation, cost: Summary | None = None, split: str = ""
) -> None:
    """Write the results of this task into the run folder, with plots and report.html.

    Several classes of an example give classes.csv with precision, recall and F1 of each. Classes give confusion.csv, predictions.npz and, for images, samples.npz, mistakes.npz and thumbnails.npz; numbers give
    predictions.csv. Both give evaluation.json: scores, calibration and curves.
    """
    path = Path(folder)
    write_scores(path, found, split)
    if found.has_several_classes:
        _write_table(path / "classes.csv", [["class", "examples", "precision", "recall", "f1"], *found.label_scores()])
    elif found.outputs is not None and found.dataset.classes:
        _write_classes(path, found.outputs, found.dataset)
    if cost is not None:
        replace_file(path / "model.txt", [f"{cost}\n".encode()])
    plots(path)
    report(path)


def write_scores(folder: Path, found: Evaluation, split: str = "", **more: Any) -> None:
    """Write evaluation.json, with `more` facts, and the predictions that it was made of with pictures of some."""
    known, scores = found.predictions(split), found.report(split)
    if known is not None and found.outputs is not None:
        write_predictions(folder, found.outputs, known.true, known.classes, split, known.examples)
        if len(found.dataset.shape) == 3:
            _write_thumbnails(folder, known, found.dataset)
    if found.outputs is not None and not found.dataset.classes:
        _write_numbers(folder, found.outputs, found.dataset)
    if scores is not None:
        write_evaluation(folder, {**scores, **more})


def write_text(folder: Path, text: str) -> None:
    """Write generated text into the run folder."""
    replace_file(folder / "text.txt", [text.encode()])


def _write_classes(folder: Path, outputs: np.ndarray, dataset: Any) -> None:
    shares = softmax(asarray(outputs)).numpy()
    true, predicted = np.asarray(dataset.labels[: len(shares)]), shares.argmax(axis=1)
    matrix = np.zeros((len(dataset.classes),) * 2, np.int64)
    np.add.at(matrix, (true, predicted), 1)
    rows = [[name, *row] for name, row in zip(dataset.classes, matrix.tolist(), strict=True)]
    _write_table(folder / "confusion.csv", [["true\\predicted", *dataset.classes], *rows])
    if len(dataset.shape) != 3:
        return
    sure = shares[np.arange(len(shares)), predicted]
    wrong = np.flatnonzero(true != predicted)
    worst = wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN]
    for name, chosen in (("samples", np.arange(min(SHOWN, len(shares)))), ("mistakes", worst)):
        _write_examples(folder / f"{name}.npz", dataset, chosen, true, predicted, sure)


def _write_thumbnails(folder: Path, found: Predictions, dataset: Any) -> None:
    """Pictures of the mistakes, the most confident first, and of some examples of each class that are right."""
    wrong = np.flatnonzero(~found.right)
    chosen = [wrong[np.argsort(-found.confidence[wrong], kind="stable")]]
    chosen += [np.flatnonzero(found.right & (found.true == i))[:EACH_CLASS] for i in range(len(found.classes))]
    order = np.concatenate(chosen)
    one = thumbnails(dataset.inputs(order[:1])) if len(order) else np.zeros((0, 1, 1, 1), np.uint8)
    order = order[: THUMBNAIL_BYTES // max(1, one.nbytes)]
    parts = [thumbnails(dataset.inputs(order[i : i + 256])) for i in range(0, len(order), 256)]
    write_npz(folder / THUMBNAILS, images=np.concatenate(parts) if parts else one, index=order.astype(np.int32))


def _write_numbers(folder: Path, outputs: np.ndarray, dataset: Any) -> None:
    true = np.asarray(dataset.labels[: len(outputs)]).reshape(len(outputs), -1)
    found = outputs.reshape(len(outputs), -1)
    head = [f"true {i}" for i in range(true.shape[1])] + [f"predicted {i}" for i in range(found.shape[1])]
    _write_table(folder / "predictions.csv", [head, *np.concatenate([true, found], axis=1).tolist()])


def _write_table(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    replace_file(path, [text.getvalue().encode()])


def _write_examples(
    path: Path, dataset: Any, chosen: np.ndarray, true: np.ndarray, predicted: np.ndarray, sure: np.ndarray
) -> None:
    images = dataset.inputs(chosen)
    if images.dtype != np.uint8:
        images = np.clip(255.0 * images, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    np.savez_compressed(
        file, images=images, true=true[chosen], predicted=predicted[chosen], probability=sure[chosen], classes=np.array(dataset.classes)
    )  # fmt: skip
    replace_file(path, [file.getvalue()])
