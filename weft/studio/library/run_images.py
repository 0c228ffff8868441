"""Pictures and predictions of a run's held-out examples, kept in memory while somebody looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ...records import dataclass
from ...report.predictions import FILE, THUMBNAILS, Predictions, read_npz, read_predictions
from ...train.watched import IMAGES, read_rows

SMALL = 64  # pixels; smaller images are shown as they are, without interpolation


@dataclass(frozen=True)
class ShownExample:
    """A held-out example: its number in the split, true and predicted class, confidence, and whether there is a picture of it."""

    index: int
    true: str
    predicted: str
    probability: float
    has_image: bool

    @property
    def right(self) -> bool:
        return self.true == self.predicted


@dataclass(frozen=True)
class Thumbnails:
    """Pictures by the number of their example."""

    images: np.ndarray
    places: dict[int, int]

    @property
    def are_small(self) -> bool:
        return max(self.images.shape[1:3], default=0) <= SMALL


def predictions_of(folder: Path) -> Predictions | None:
    """The predictions of a run; read again when the file has changed."""
    return _predictions(folder, _stamp(folder / FILE))


def thumbnails_of(folder: Path) -> Thumbnails | None:
    return _thumbnails(folder / THUMBNAILS, _stamp(folder / THUMBNAILS))


def watched_of(folder: Path) -> Thumbnails | None:
    return _thumbnails(folder / IMAGES, _stamp(folder / IMAGES), "")


@lru_cache(maxsize=16)
def _predictions(folder: Path, stamp: int | None) -> Predictions | None:
    return None if stamp is None else read_predictions(folder)


@lru_cache(maxsize=16)
def _thumbnails(path: Path, stamp: int | None, index: str = "index") -> Thumbnails | None:
    found = {} if stamp is None else read_npz(path)
    if "images" not in found:
        return None
    numbers = found[index].tolist() if index else range(len(found["images"]))
    return Thumbnails(found["images"], {int(n): i for i, n in enumerate(numbers)})


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def examples(folder: Path, chosen: Sequence[int]) -> list[ShownExample]:
    """These examples of a run, with what was predicted for them."""
    found, pictures = predictions_of(folder), thumbnails_of(folder)
    if found is None:
        return []
    predicted, sure = found.predicted, found.confidence
    return [
        ShownExample(
            i, found.classes[found.true[i]], found.classes[predicted[i]], float(sure[i]), pictures is not None and i in pictures.places
        )
        for i in map(int, chosen)
    ]  # fmt: skip


def cell_examples(folder: Path, row: int, column: int) -> list[int]:
    """The examples of a cell of the confusion matrix, the most confident first; those with a picture before others."""
    found, pictures = predictions_of(folder), thumbnails_of(folder)
    if found is None:
        return []
    fits = np.flatnonzero((found.true == row) & (found.predicted == column))
    places = pictures.places if pictures is not None else {}
    return sorted(map(int, fits), key=lambda i: (i not in places, -float(found.confidence[i])))


def mistakes(folder: Path) -> list[int]:
    """The examples that are classified wrongly, the most confident first."""
    found = predictions_of(folder)
    if found is None:
        return []
    wrong = np.flatnonzero(~found.right)
    return [int(i) for i in wrong[np.argsort(-found.confidence[wrong], kind="stable")]]


@dataclass(frozen=True)
class WatchedExample:
    """A watched validation example after one epoch; probability is None for a regression."""

    number: int
    true: str
    predicted: str
    probability: float | None

    @property
    def right(self) -> bool:
        return self.true == self.predicted


def watched(folder: Path) -> dict[int, list[WatchedExample]]:
    """The watched examples by epoch."""
    found: dict[int, list[WatchedExample]] = {}
    for row in read_rows(folder):
        share = float(row["probability"]) if row["probability"] else None
        one = WatchedExample(int(row["example"]), row["true"], row["predicted"], share)
        found.setdefault(int(row["epoch"]), []).append(one)
    return found
