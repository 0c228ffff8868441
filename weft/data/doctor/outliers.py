"""Outliers: images far from all others in the space of features, such as a picture of something else altogether."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..changes import DatasetChanges
from .image_facts import ImageFacts
from .probe import principal_components
from .report import CheckResult, DoctorFinding

_COMPONENTS, _NEIGHBOURS, _STEP = 128, 5, 1024
_FAR = 4.0  # robust standard deviations above the median of the logarithm of distances
_FEWEST = 20  # images, below which distances tell nothing


def check_outliers(
    facts: ImageFacts, classes: Sequence[str], usable: np.ndarray, progress: Callable[[int, int], None]
) -> CheckResult:
    """Images whose nearest neighbours are much farther away than usual; `usable` are those that show something."""
    chosen = np.flatnonzero(usable)
    if len(chosen) < _FEWEST:
        return CheckResult("outliers", "Outliers", "ok", f"Needs {_FEWEST} images or more")
    distances = neighbour_distances(_whitened(facts.features[chosen]), progress)
    far = robust_scores(np.log(np.maximum(distances, 1e-6)))
    found = [place for place in np.argsort(-far).tolist() if far[place] > _FAR]
    usual = float(np.median(distances))
    findings = tuple(_finding(facts, classes, int(chosen[place]), distances[place] / usual) for place in found)
    text = (
        f"{len(found):,} {'image is' if len(found) == 1 else 'images are'} unlike all others" if found else "None found"
    )
    return CheckResult("outliers", "Outliers", "info" if found else "ok", text, findings)


def _whitened(features: np.ndarray) -> np.ndarray:
    """Directions in which images usually differ little count as much as the others: there, what is odd shows."""
    points = principal_components(features, _COMPONENTS)
    deviations = points.std(0)
    return np.asarray(points / np.maximum(deviations, 0.01 * deviations.max()), np.float32)


def neighbour_distances(points: np.ndarray, progress: Callable[[int, int], None]) -> np.ndarray:
    """The mean distance of each point to its five nearest neighbours."""
    squares = (points * points).sum(1)
    found = np.empty(len(points), np.float32)
    for start in range(0, len(points), _STEP):
        part = points[start : start + _STEP]
        away = squares[start : start + _STEP, None] + squares - 2 * part @ points.T
        away[np.arange(len(part)), np.arange(start, start + len(part))] = np.inf
        nearest = np.partition(away, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
        found[start : start + _STEP] = np.sqrt(np.maximum(nearest, 0)).mean(1)
        progress(min(start + _STEP, len(points)), len(points))
    return found


def robust_scores(values: np.ndarray) -> np.ndarray:
    """How many standard deviations each value is above the median, with a deviation that outliers do not change."""
    middle = np.median(values)
    deviation = 1.4826 * np.median(np.abs(values - middle))
    return np.asarray((values - middle) / max(float(deviation), 1e-6))


def _finding(facts: ImageFacts, classes: Sequence[str], row: int, times: float) -> DoctorFinding:
    split, number = facts.places[row]
    label = classes[facts.labels[row]] if facts.labels[row] >= 0 else ""
    text = f"{times:.1f} times as far from its neighbours as usual"
    return DoctorFinding(
        "outliers", "info", ((split, number),), text, None, DatasetChanges({split: [number]}), {"labels": [label]}
    )
