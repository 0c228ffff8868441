"""Results of predictions for many images: accuracy, classes, confusions, and the most confident images of each class."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...records import dataclass

INPUTS, TABLE, RESULTS, SUBMISSION = "inputs.csv", "predictions.csv", "predictions.json", "submission.json"


@dataclass(frozen=True)
class StoredPrediction:
    """A line of predictions.csv."""

    index: int
    path: str
    label: str
    error: str
    best: tuple[tuple[str, float], ...]
    numbers: tuple[float, ...] = ()

    @property
    def predicted(self) -> str:
        return self.best[0][0] if self.best else ""

    @property
    def confidence(self) -> float:
        return self.best[0][1] if self.best else 0.0

    @property
    def is_right(self) -> bool | None:
        """Whether the best class is the label; None without a label or a prediction."""
        return self.label == self.predicted if self.label and self.best else None


def titles(classes: Sequence[str], top: int, numbers: int = 0) -> list[str]:
    """The columns of predictions.csv."""
    ranks = [f"_{i}" if i > 1 else "" for i in range(1, min(top, len(classes)) + 1)]
    pairs = [f"{word}{rank}" for rank in ranks for word in ("class", "probability")]
    return ["path", "label", "error", *(pairs or [f"number_{i + 1}" for i in range(numbers)])]


def read_predictions(folder: Path) -> list[StoredPrediction]:
    """The predictions so far."""
    try:
        with (folder / TABLE).open(encoding="utf-8", errors="surrogateescape", newline="") as file:
            head, *rows = csv.reader(file)
    except (FileNotFoundError, ValueError):
        return []
    of_classes = "class" in head
    return [
        _stored(i, row, of_classes) for i, row in enumerate(rows) if len(row) == len(head) or (len(row) == 3 and row[2])
    ]


def _stored(index: int, row: Sequence[str], of_classes: bool) -> StoredPrediction:
    path, label, error, *rest = row
    if error or not of_classes:
        return StoredPrediction(index, path, label, error, (), tuple(map(float, rest)))
    pairs = tuple((name, float(share)) for name, share in zip(rest[::2], rest[1::2], strict=True))
    return StoredPrediction(index, path, label, error, pairs)


def measure(found: Sequence[StoredPrediction], classes: Sequence[str]) -> dict[str, Any]:
    """Counts, accuracy and confusions. Labels that are no class of the network do not count."""
    known = frozenset(classes)
    labelled = [one for one in found if one.label in known and one.best]
    facts: dict[str, Any] = {
        "images": len(found), "failed": sum(bool(one.error) for one in found), "labelled": len(labelled),
        "unknown_labels": sorted({one.label for one in found if one.label and one.label not in known})[:100],
        "predicted": dict(Counter(one.predicted for one in found if one.best)),
    }  # fmt: skip
    if not labelled:
        return facts
    right = Counter(one.label for one in labelled if one.is_right)
    total = Counter(one.label for one in labelled)
    confusions = Counter((one.label, one.predicted) for one in labelled)
    in_top = sum(one.label in {name for name, _ in one.best[:5]} for one in labelled)
    return facts | {
        "right": right.total(), "accuracy": right.total() / len(labelled), "top5_accuracy": in_top / len(labelled),
        "class_accuracy": {name: right[name] / total[name] for name in classes if total[name]},
        "class_images": {name: total[name] for name in classes if total[name]},
        "confusions": [[true, predicted, n] for (true, predicted), n in sorted(confusions.items())],
    }  # fmt: skip


def best_per_class(
    found: Sequence[StoredPrediction], classes: Sequence[str], most: int
) -> dict[str, list[tuple[StoredPrediction, float]]]:
    """The images with the highest probability of each class, among those that have it in their line of the table."""
    by_class: defaultdict[str, list[tuple[StoredPrediction, float]]] = defaultdict(list)
    for one in found:
        for name, share in one.best:
            by_class[name].append((one, share))
    return {name: sorted(by_class[name], key=lambda pair: -pair[1])[:most] for name in classes}
