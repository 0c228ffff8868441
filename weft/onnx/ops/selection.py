"""Ops whose result shapes depend on values: NonZero, Unique, Compress, NonMaxSuppression. They run outside of `weft.jit` only."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ops.indexing import take
from ...ops.movement import reshape
from ...tensor import Tensor
from ..registry import op
from ..values import tensor


@op("NonZero", host=("x",))
def non_zero(x: np.ndarray) -> np.ndarray:
    return np.array(np.nonzero(x), np.int64).reshape(max(x.ndim, 0), -1)


@op("Compress", host=("condition",))
def compressed(x: Tensor, condition: np.ndarray, *, axis: int | None = None) -> Tensor:
    chosen = tensor(np.flatnonzero(condition).astype(np.int64))
    return take(reshape(x, (-1,)), chosen, axis=0) if axis is None else take(x, chosen, axis=axis)


@op("Unique", host=("x",))
def unique(x: np.ndarray, *, axis: int | None = None, sorted: int = 1) -> tuple[np.ndarray, ...]:
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
        inverse = rank[inverse]
    return values, *(v.astype(np.int64) for v in (first, inverse, counts))


@op("NonMaxSuppression", host=("boxes", "scores", "limit", "overlap", "threshold"))
def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    limit: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    threshold: np.ndarray | None = None,
    *,
    center_point_box: int = 0,
) -> np.ndarray:
    """Rows (batch, class, box) of the boxes that no better box of their class overlaps too much."""
    most = 0 if limit is None else int(limit.item())
    bound = 0.0 if overlap is None else float(overlap.item())
    least = -np.inf if threshold is None else float(threshold.item())
    found: list[tuple[int, int, int]] = []
    for batch, own in enumerate(_corners(boxes, bool(center_point_box))):
        for number, score in enumerate(scores[batch]):
            found += [(batch, number, i) for i in _kept(own, score, most, bound, least)]
    return np.array(found, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, centred: bool) -> np.ndarray:
    """Boxes as (low, high) corners, whichever two opposite corners the file gives."""
    if centred:
        middle, size = boxes[..., :2], boxes[..., 2:]
        return np.concatenate([middle - size / 2, middle + size / 2], -1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _kept(boxes: np.ndarray, score: np.ndarray, most: int, bound: float, least: float) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-score, kind="stable").tolist():
        if len(kept) == most or not score[i] > least:
            break
        if not kept or not (_overlaps(boxes[i], boxes[kept]) > bound).any():
            kept.append(i)
    return kept


def _overlaps(box: np.ndarray, others: np.ndarray) -> Any:
    """Intersection over union."""
    sides = np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0)
    shared = sides.prod(-1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(-1) - shared
    return np.where(union > 0, shared / np.where(union > 0, union, 1), 0)
