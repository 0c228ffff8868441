"""Results of a cross-validation: what each fold's run writes, and the means and out-of-fold predictions made of them.

out_of_fold.npz   of a run: index (the examples of its fold, by their place in the training split), outputs, true; of a cross-validation:
                  index, fold (from 1), true, and probabilities or numbers of all training examples, in their order, with classes
out_of_fold.csv   the same as a table, with the names of examples that have names
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...data import Dataset
from ...data.label_kinds import kind_of, label_list, named
from ...errors import RunError
from ...io.files import replace_file
from ...records import dataclass
from ...report.evaluation import evaluate_classes, evaluate_numbers, write_evaluation
from ...report.predictions import Predictions, log_softmax, read_npz, write_npz
from ...train.folder import RunFolder
from ...train.results import Evaluation
from ..prediction.predictions import TOP, outcome
from ..prediction.results import titles

OUT_OF_FOLD, TABLE = "out_of_fold.npz", "out_of_fold.csv"
SPLIT = "out of fold"


def write_fold(folder: Path, found: Evaluation) -> None:
    """Write the outputs of a run for the examples of its fold."""
    assert found.outputs is not None
    write_npz(
        folder / OUT_OF_FOLD, index=found.dataset.indices, outputs=found.outputs, true=np.asarray(found.dataset.labels)
    )


def metric_table(runs: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Mean, standard deviation (of a sample, with n - 1) and values of each metric over the folds."""
    rows = [RunFolder(run).known_summary().get("test", {}) for run in runs]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    values = {name: [float(row[name]) for row in rows] for name in names}
    return {
        name: {"mean": float(np.mean(v)), "std": float(np.std(v, ddof=1)), "values": v} for name, v in values.items()
    }


@dataclass(frozen=True)
class OutOfFold:
    """Predictions for all training examples, each by the network that was not trained on it."""

    fold: np.ndarray  # from 1
    true: np.ndarray
    outputs: np.ndarray  # logits or numbers
    classes: tuple[str, ...]
    names: list[str] | None

    @classmethod
    def of_runs(cls, runs: Sequence[Path], train: Dataset) -> OutOfFold:
        """Collect what the runs of the folds, in their order, wrote."""
        parts = [read_npz(run / OUT_OF_FOLD) for run in runs]
        index = np.concatenate([part["index"] for part in parts])
        if not np.array_equal(np.sort(index), np.arange(len(train))):
            raise RunError("folds", f"predictions for each of {len(train)} training examples are required, got {len(index)} of {len(np.unique(index))} examples. The data has changed: start again.")  # fmt: skip
        order = np.argsort(index)
        fold = np.concatenate([np.full(len(part["index"]), 1 + number) for number, part in enumerate(parts)])
        outputs, true = (np.concatenate([part[name] for part in parts])[order] for name in ("outputs", "true"))
        return cls(fold[order], true, outputs, train.classes, train.names)

    @property
    def predicted(self) -> np.ndarray:
        """Probabilities of classes, or numbers."""
        kind = kind_of(self.true)
        if kind == "class":
            return np.asarray(np.exp(log_softmax(self.outputs)))
        return self.outputs if kind == "numbers" else np.asarray(1.0 / (1.0 + np.exp(-self.outputs.astype(np.float64))))

    def report(self) -> dict[str, Any] | None:
        """Scores over all examples; None where an example can have several classes."""
        kind = kind_of(self.true)
        if kind == "class":
            return evaluate_classes(Predictions(self.predicted, self.true, list(self.classes), SPLIT))
        rows = len(self.true), -1
        return None if kind == "classes" else evaluate_numbers(self.true.reshape(rows), self.outputs.reshape(rows), SPLIT)  # fmt: skip

    def write(self, folder: Path) -> None:
        """Write the arrays, the table, and scores in evaluation.json."""
        known = {"probabilities" if self.classes else "numbers": self.predicted.astype(np.float32)}
        write_npz(folder / OUT_OF_FOLD, index=np.arange(len(self.true)), fold=self.fold, true=self.true, classes=np.array(self.classes, np.str_), **known)  # fmt: skip
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(self._rows())
        replace_file(folder / TABLE, [text.getvalue().encode("utf-8", "surrogateescape")])
        scores = self.report()
        if scores is not None:
            write_evaluation(folder, scores)

    def _rows(self) -> list[list[Any]]:
        """As predictions.csv has them (see predictions.py): the best classes with their probabilities, or numbers."""
        values = self.predicted.reshape(len(self.true), -1)
        labels = named(label_list(self.true), kind_of(self.true), self.classes)
        names = self.names or [""] * len(labels)
        rows = [["example", "fold", *titles(self.classes, TOP, values.shape[1])]]
        for i, (value, label, name) in enumerate(zip(values, labels, names, strict=True)):
            best, numbers = outcome(value, self.classes, TOP)
            cells = [cell for one, share in best for cell in (one, f"{share:.6g}")] or [f"{v:.9g}" for v in numbers]
            rows.append([str(i), str(self.fold[i]), name, ";".join(map(str, label)), "", *cells])
        return rows


def metrics_text(table: Mapping[str, Mapping[str, Any]]) -> str:
    """
    >>> metrics_text({"accuracy": {"mean": 0.975, "std": 0.0102}, "loss": {"mean": 0.1, "std": 0.02}})
    'accuracy 97.50 % ± 1.02, loss 0.1000 ± 0.0200'
    """
    shown = []
    for name, one in table.items():
        share = "accuracy" in name or name == "f1"
        numbers = (
            f"{100 * one['mean']:.2f} % ± {100 * one['std']:.2f}" if share else f"{one['mean']:.4f} ± {one['std']:.4f}"
        )
        shown.append(f"{name} {numbers}")
    return ", ".join(shown)
