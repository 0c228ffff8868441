"""Targets of an explanation: the score of which class is explained, for each example."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import float32
from ..errors import UserError
from ..ops.activation import relu
from ..ops.convert import asarray
from ..ops.elementwise import astype, where
from ..ops.indexing import take_along_axis
from ..ops.movement import expand_dims
from ..ops.reduce import argmax
from ..ops.reduce import sum as sum_over
from ..ops.statistics import softmax
from ..tensor import Tensor

NO_TARGET = -1  # the class with the highest score


def rows(scores: Tensor) -> Tensor:
    """Scores as (batch, classes); one number for each example is one class."""
    scores = expand_dims(scores, 1) if scores.ndim == 1 else scores
    if scores.ndim != 2:
        raise UserError(
            "Explainer",
            f"a network that gives a row of scores for each example is required, got outputs of shape {scores.shape}.",
        )
    return astype(scores, float32)


def chosen(scores: Tensor, target: Tensor) -> Tensor:
    """The score of the target of each example."""
    return take_along_axis(scores, expand_dims(decided(scores, target), 1), axis=1)


def decided(scores: Tensor, target: Tensor) -> Tensor:
    """The targets, with the predicted class where there is none."""
    return where(target == NO_TARGET, astype(argmax(scores, axis=1), target.dtype), target)


def probabilities(scores: Tensor) -> Tensor:
    """The softmax of the scores; a single score is no class, and stays as it is."""
    return softmax(scores) if scores.shape[1] > 1 else scores


def plus_plus_weights(maps: Tensor, slope: Tensor) -> Tensor:
    """The weights of channels in Grad-CAM++: sum over pixels of alpha relu(g), alpha = g^2 / (2 g^2 + g^3 sum of A)."""
    square, cube = slope * slope, slope * slope * slope
    below = 2.0 * square + sum_over(maps, axis=(2, 3), keepdims=True) * cube
    alpha = where(below == 0.0, 0.0, square / where(below == 0.0, 1.0, below))
    return sum_over(alpha * relu(slope), axis=(2, 3), keepdims=True)


def targets(where_: str, target: Any, count: int) -> Tensor:
    """A class index for each example."""
    if target is None:
        return asarray(np.full(count, NO_TARGET, np.int64))
    found = np.asarray(target)
    if found.dtype.kind not in "iu" or found.shape not in ((), (count,)) or (found.size and found.min() < 0):
        raise UserError(where_, f"a class index, or one for each of {count} examples, is required, got {target!r}.")
    return asarray(np.broadcast_to(found.astype(np.int64), (count,)).copy())


def pair(name: str, value: Any) -> tuple[int, int]:
    """One number or two, as two."""
    found = (value, value) if isinstance(value, int | np.integer) else tuple(value)
    if len(found) != 2 or any(int(n) != n or n < 1 for n in found):
        raise UserError("occlusion", f"a {name} of one or two numbers from 1 is required, got {value!r}.")
    return int(found[0]), int(found[1])
