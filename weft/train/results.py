"""What a trained network does with examples it has not seen: numbers, and files of the run folder with the report made of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..data.texts import Text
from ..io.safetensors import replace_file
from ..nn.count import Summary
from ..ops.statistics import softmax
from ..report import plots, report
from ..tensor import Tensor
from .names import Loss
from .task import task_of

SHOWN = 40  # samples, and worst mistakes
Network = Callable[[Any], Tensor]  # from stored inputs to predictions


def evaluated(network: Network, batches: Any, loss: str | Loss | None = None) -> dict[str, Any]:
    """The loss and the metrics of all batches, and with classes how many of each were right."""
    dataset = batches.dataset
    task = task_of(np.asarray(dataset.labels[:1]), loss, None)
    meters = task.meters()
    counts = np.zeros((2, len(dataset.classes)), np.int64)  # right, all
    for x, y in batches:
        prediction = network(x)
        for name, meter in meters.items():
            if name == "loss":
                meter.update(task.loss(prediction, y), weight=float(x.shape[0]))  # type: ignore[attr-defined]
            else:
                meter.update(prediction, y)  # type: ignore[attr-defined]
        if dataset.classes:
            true, taken = y.numpy(), prediction.numpy().argmax(axis=1)
            counts += [np.bincount(true[rows], minlength=counts.shape[1]) for rows in (true == taken, slice(None))]
    found: dict[str, Any] = {name: float(meter.value().item()) for name, meter in meters.items()}
    if dataset.classes:
        shares = (counts[0] / np.maximum(counts[1], 1)).tolist()
        found["classes"] = dict(zip(dataset.classes, shares, strict=True))
    return found


def write_results(folder: Path, network: Network, batches: Any, cost: Summary | None = None) -> None:
    """Write what belongs to this kind of task, the plots and report.html.

    Classes give confusion.csv and, for images, samples.npz and mistakes.npz; numbers give predictions.csv. `batches` is a loader
    that does not shuffle.
    """
    dataset = batches.dataset
    if dataset.classes:
        _write_classes(folder, network, batches)
    elif not isinstance(dataset, Text):
        _write_numbers(folder, network, batches)
    if cost is not None:
        replace_file(folder / "model.txt", [f"{cost}\n".encode()])
    plots(folder)
    report(folder)


def write_text(folder: Path, text: str) -> None:
    """What a network wrote by itself."""
    replace_file(folder / "text.txt", [text.encode()])


def _write_classes(folder: Path, network: Network, batches: Any) -> None:
    dataset = batches.dataset
    shares = np.concatenate([softmax(network(x)).numpy() for x, _ in batches])
    true, predicted = np.asarray(dataset.labels[: len(shares)]), shares.argmax(axis=1)
    matrix = np.zeros((len(dataset.classes),) * 2, np.int64)
    np.add.at(matrix, (true, predicted), 1)
    _write_table(
        folder / "confusion.csv",
        [["true\\predicted", *dataset.classes]],
        zip(dataset.classes, matrix.tolist(), strict=True),
    )
    if len(dataset.shape) != 3:
        return
    sure = shares[np.arange(len(shares)), predicted]
    wrong = np.flatnonzero(true != predicted)
    worst = wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN]
    for name, chosen in (("samples", np.arange(min(SHOWN, len(shares)))), ("mistakes", worst)):
        _write_examples(folder / f"{name}.npz", dataset, chosen, true, predicted, sure)


def _write_numbers(folder: Path, network: Network, batches: Any) -> None:
    found = np.concatenate([network(x).numpy() for x, _ in batches])
    true = np.asarray(batches.dataset.labels[: len(found)]).reshape(len(found), -1)
    found = found.reshape(len(found), -1)
    head = [[f"{what} {i}" for what in ("true", "predicted") for i in range(part.shape[1])] for part in (true,)]
    _write_table(
        folder / "predictions.csv", head, (([], [*t, *p]) for t, p in zip(true.tolist(), found.tolist(), strict=True))
    )


def _write_table(path: Path, head: list[list[str]], rows: Any) -> None:
    """A table: rows are a name (or nothing) and numbers."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows(head)
    table.writerows([*([name] if isinstance(name, str) else name), *numbers] for name, numbers in rows)
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
