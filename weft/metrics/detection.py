"""Object detection: mean average precision, computed in NumPy once for a whole set of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..tensor import ArrayLike


class Detections(NamedTuple):
    """The objects of one image: boxes (n, 4) as left, top, right, bottom; classes (n,); for predictions also scores (n,)."""

    boxes: ArrayLike
    classes: ArrayLike
    scores: ArrayLike | None = None


def mean_average_precision(
    predictions: Sequence[Detections], targets: Sequence[Detections], *, iou: float | Sequence[float] = 0.5
) -> float:
    """The mean over classes, and over thresholds `iou` if there are several, of the area under the precision-recall curve.

    In order of descending score, a prediction is matched to the unmatched object of its class and image with the largest overlap, if that
    is `iou` or more; else it is a false positive. The precision at a recall is the maximum at this or a higher recall. Classes without
    targets are ignored; without any target the result is nan.

    >>> found = Detections([[0, 0, 2, 2], [5, 5, 6, 6]], [1, 1], [0.9, 0.8])
    >>> mean_average_precision([found], [Detections([[0, 0, 2, 2]], [1])])
    1.0
    """
    if len(predictions) != len(targets):
        raise UserError(
            "mean_average_precision",
            f"predictions and targets of as many images are required, got {len(predictions)} and {len(targets)}.",
        )
    limits = [float(v) for v in (iou if isinstance(iou, Sequence) else [iou])]
    if not limits or not all(0.0 < v <= 1.0 for v in limits):
        raise UserError("mean_average_precision", f"thresholds of iou in (0, 1] are required, got {iou}.")
    found, truth = [_arrays(p, True) for p in predictions], [_arrays(t, False) for t in targets]
    classes = sorted({int(c) for _, owned, _ in truth for c in owned})
    areas = [_average_precision(found, truth, c, limit) for c in classes for limit in limits]
    return float(np.mean(areas)) if areas else math.nan


_Image = tuple[np.ndarray, np.ndarray, np.ndarray]


def _arrays(given: Detections, with_scores: bool) -> _Image:
    boxes = np.asarray(given.boxes, np.float64).reshape(-1, 4) if np.size(given.boxes) else np.zeros((0, 4))
    classes = np.asarray(given.classes).reshape(-1)
    scores = np.zeros(len(boxes)) if given.scores is None else np.asarray(given.scores, np.float64).reshape(-1)
    if with_scores and given.scores is None:
        raise UserError("mean_average_precision", "predictions need scores: Detections(boxes, classes, scores).")
    if not len(boxes) == len(classes) == len(scores):
        raise UserError(
            "mean_average_precision",
            f"as many boxes as classes and scores are required, got {len(boxes)}, {len(classes)} and {len(scores)}.",
        )
    return boxes, classes, scores


def _average_precision(found: Sequence[_Image], truth: Sequence[_Image], which: int, limit: float) -> float:
    """The average precision of one class at one threshold."""
    hits: list[bool] = []
    scores: list[float] = []
    total = 0
    for (boxes, classes, sure), (true_boxes, true_classes, _) in zip(found, truth, strict=True):
        own, wanted = boxes[classes == which], true_boxes[true_classes == which]
        order = np.argsort(-sure[classes == which], kind="stable")
        hits += _matches(own[order], wanted, limit)
        scores += sure[classes == which][order].tolist()
        total += len(wanted)
    right = np.asarray(hits, bool)[np.argsort(-np.asarray(scores), kind="stable")]
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float(best[right].sum() / total)


def _matches(boxes: np.ndarray, wanted: np.ndarray, limit: float) -> list[bool]:
    """For the boxes of an image in order of descending score: whether each matches an object that is still unmatched."""
    overlap = box_iou(boxes, wanted)
    free = np.ones(len(wanted), bool)
    hits: list[bool] = []
    for row in overlap:
        open_ = np.where(free, row, -1.0)
        place = int(np.argmax(open_)) if len(wanted) else -1
        hit = place >= 0 and open_[place] >= limit
        if hit:
            free[place] = False
        hits.append(bool(hit))
    return hits


def box_iou(a: Any, b: Any) -> np.ndarray:
    """The intersection over union of each of n boxes with each of m boxes: (n, m)."""
    a, b = np.asarray(a, np.float64).reshape(-1, 1, 4), np.asarray(b, np.float64).reshape(1, -1, 4)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    both = np.prod(np.clip(sides, 0.0, None), axis=-1)
    either = sum(np.prod(np.clip(x[..., 2:] - x[..., :2], 0.0, None), axis=-1) for x in (a, b)) - both
    return np.asarray(both / np.where(either > 0.0, either, 1.0))
