"""A few fixed validation examples whose predictions are kept after every epoch: they show what a network learns while it learns.

watched.npz   the examples: images, or inputs that are not, with their true classes or values
watched.csv   a row for each epoch and example: epoch, example, true, predicted, probability (empty for a regression)
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from ..data.loader import Loader
from ..data.texts import Text
from ..io.files import replace_file
from ..report.predictions import log_softmax, write_npz
from .thumbnails import thumbnails

COUNT = 8
IMAGES, ROWS = "watched.npz", "watched.csv"
HEAD = ("epoch", "example", "true", "predicted", "probability")


class WatchedExamples:
    """Collects predictions of the chosen examples from the batches of a validation."""

    def __init__(self, dataset: Any, folder: Path) -> None:
        self.dataset, self.folder = dataset, folder
        self.chosen = chosen_examples(np.asarray(dataset.labels), len(dataset.classes))
        self._found: dict[int, np.ndarray] = {}

    @classmethod
    def of(cls, validation: Any, folder: Path | None) -> WatchedExamples | None:
        """None without a folder, and for data whose order or form does not allow it: a text, or a loader of another kind."""
        if folder is None or not isinstance(validation, Loader) or validation.shuffle:
            return None
        dataset = validation.dataset
        labels = np.asarray(dataset.labels)
        if isinstance(dataset, Text) or not hasattr(dataset, "classes") or labels.ndim != 1:
            return None
        return cls(dataset, folder)

    def wants(self, start: int, count: int) -> bool:
        """Whether any of the `count` examples from this one on is watched."""
        return bool(((start <= self.chosen) & (self.chosen < start + count)).any())

    def take(self, start: int, prediction: Any) -> None:
        """Predictions of a batch that begins at this example; nothing is read of batches without a watched one."""
        inside = [i for i in self.chosen.tolist() if start <= i < start + prediction.shape[0]]
        if inside:
            rows = prediction.numpy()
            self._found |= {i: np.array(rows[i - start]) for i in inside}

    def write(self, epoch: int) -> None:
        """Add the rows of an epoch; rows of this and later epochs, from before a resume, are replaced."""
        if not (self.folder / IMAGES).exists():
            self._write_examples()
        before = [row for row in read_rows(self.folder) if int(row["epoch"]) < epoch]
        text = io.StringIO()
        table = csv.DictWriter(text, HEAD, lineterminator="\n")
        table.writeheader()
        table.writerows([*before, *(self._row(epoch, n, i) for n, i in enumerate(self.chosen.tolist()))])
        replace_file(self.folder / ROWS, [text.getvalue().encode()])

    def _row(self, epoch: int, number: int, index: int) -> dict[str, Any]:
        classes, true, found = self.dataset.classes, np.asarray(self.dataset.labels)[index], self._found[index]
        if not classes:
            return dict(
                zip(HEAD, (epoch, number, f"{float(true):.6g}", f"{float(found.reshape(-1)[0]):.6g}", ""), strict=True)
            )
        shares = np.exp(log_softmax(found.reshape(1, -1)))[0]
        best = int(shares.argmax())
        return dict(zip(HEAD, (epoch, number, classes[int(true)], classes[best], f"{shares[best]:.4f}"), strict=True))

    def _write_examples(self) -> None:
        labels = np.asarray(self.dataset.labels)[self.chosen]
        known = {"index": self.chosen, "true": labels, "classes": np.array(self.dataset.classes, dtype=np.str_)}
        if len(self.dataset.shape) == 3:
            known["images"] = thumbnails(self.dataset.inputs(self.chosen))
        write_npz(self.folder / IMAGES, **known)


def chosen_examples(labels: np.ndarray, classes: int, count: int = COUNT) -> np.ndarray:
    """The examples to watch: the first of each class, then the second, and so on; evenly spread ones without classes.

    >>> chosen_examples(np.array([0, 0, 0, 1, 2, 2]), 3, 4).tolist()
    [0, 1, 3, 4]
    """
    count = min(count, len(labels))
    if not classes:
        return np.unique(np.linspace(0, len(labels) - 1, count).astype(np.int64))
    order = np.argsort(labels, kind="stable")
    begins = np.searchsorted(labels[order], labels[order])
    turn = np.arange(len(order)) - begins  # how many of its class come before it
    return np.sort(order[np.lexsort((order, turn))][:count])


def read_rows(folder: Path) -> list[dict[str, str]]:
    """The rows of watched.csv; none if it is missing, and whole ones only."""
    try:
        rows = list(csv.DictReader((folder / ROWS).read_text("utf-8", errors="replace").splitlines()))
    except OSError:
        return []
    return [row for row in rows if all(row.get(name) is not None for name in HEAD) and row["epoch"].isdigit()]
