"""What a trained network does with examples it has not seen, as files of the run folder, and the report made of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..io.safetensors import replace_file
from ..nn.count import Summary
from ..ops.statistics import softmax
from ..report import plots, report
from ..tensor import Tensor

SHOWN = 40  # samples, and worst mistakes


def write_results(folder: Path, network: Callable[[Any], Tensor], batches: Any, cost: Summary | None = None) -> float:
    """Write confusion.csv, samples.npz, mistakes.npz, model.txt, the plots and report.html; the accuracy.

    `network` gives logits for stored inputs; `batches` is a loader that does not shuffle.
    """
    dataset = batches.dataset
    shares = np.concatenate([softmax(network(x)).numpy() for x, _ in batches])
    true, predicted = np.asarray(dataset.labels[: len(shares)]), shares.argmax(axis=1)
    matrix = np.zeros((len(dataset.classes),) * 2, np.int64)
    np.add.at(matrix, (true, predicted), 1)
    _write_matrix(folder, matrix, dataset.classes)
    sure = shares[np.arange(len(shares)), predicted]
    wrong = np.flatnonzero(true != predicted)
    worst = wrong[np.argsort(-sure[wrong], kind="stable")][:SHOWN]
    for name, chosen in (("samples", np.arange(min(SHOWN, len(shares)))), ("mistakes", worst)):
        _write_examples(folder / f"{name}.npz", dataset, chosen, true, predicted, sure)
    if cost is not None:
        replace_file(folder / "model.txt", [f"{cost}\n".encode()])
    plots(folder)
    report(folder)
    return float((true == predicted).mean())


def _write_matrix(folder: Path, matrix: np.ndarray, classes: tuple[str, ...]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["true\\predicted", *classes])
    table.writerows([name, *row] for name, row in zip(classes, matrix.tolist(), strict=True))
    replace_file(folder / "confusion.csv", [text.getvalue().encode()])


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
