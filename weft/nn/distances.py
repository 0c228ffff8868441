"""Losses on vectors, regions and boxes: cosine, triplet, contrastive, ranking, Dice, Tversky, IoU."""

from __future__ import annotations

import math

from ..errors import UserError
from ..ops.activation import relu
from ..ops.contract import matmul
from ..ops.creation import eye, iota
from ..ops.declare import in_float32, normal_axis
from ..ops.elementwise import abs, maximum, minimum, stop_gradient, where
from ..ops.loss import Reduction, cross_entropy, reduced, same_shape
from ..ops.movement import concat, matrix_transpose, roll
from ..ops.reduce import max, prod, sum
from ..ops.statistics import norm
from ..tensor import ArrayLike, Tensor

# --- vectors -------------------------------------------------------------------------------------------------------------------


@in_float32
def cosine_distance(
    prediction: ArrayLike, target: ArrayLike, *, axis: int = -1, reduction: Reduction = "mean"
) -> Tensor:
    """1 - a·b / (|a| |b|): 0 for equal directions, 1 for orthogonal ones (and for a vector of zeros), 2 for opposite ones.

    >>> cosine_distance([[3.0, 0.0], [1.0, 0.0]], [[5.0, 0.0], [0.0, 2.0]], reduction="none").tolist()
    [0.0, 1.0]
    """
    a, b = same_shape("cosine_distance", prediction, target)
    axis = normal_axis("cosine_distance", axis, a.ndim)
    return reduced("cosine_distance", 1.0 - sum(_unit(a, axis) * _unit(b, axis), axis=axis), reduction)


@in_float32
def triplet_margin(
    anchor: ArrayLike,
    positive: ArrayLike,
    negative: ArrayLike,
    *,
    margin: float = 1.0,
    order: float = 2.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """max(0, |a - p| - |a - n| + margin) along the last axis, for an anchor a, a positive p and a negative n.

    >>> triplet_margin([[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 1.0]]).item()
    5.0
    """
    at_least_0("triplet_margin", "margin", margin)
    a, p = same_shape("triplet_margin", anchor, positive)
    a, n = same_shape("triplet_margin", a, negative)
    normal_axis("triplet_margin", -1, a.ndim)
    return reduced("triplet_margin", relu(_length(a - p, order) - _length(a - n, order) + margin), reduction)


@in_float32
def pair_contrastive(
    first: ArrayLike, second: ArrayLike, target: ArrayLike, *, margin: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """d² for similar pairs (target 1), max(0, margin - d)² for dissimilar pairs (target 0), d = |a - b|.

    One loss per pair of vectors along the last axis (Hadsell et al. 2006).
    """
    at_least_0("pair_contrastive", "margin", margin)
    a, b = same_shape("pair_contrastive", first, second)
    normal_axis("pair_contrastive", -1, a.ndim)
    distance = _length(a - b, 2.0)
    d, together = same_shape("pair_contrastive", distance, target)
    short = relu(margin - d)
    return reduced("pair_contrastive", together * d * d + (1.0 - together) * short * short, reduction)


@in_float32
def contrastive(
    first: ArrayLike, second: ArrayLike, *, temperature: float = 0.5, reduction: Reduction = "mean"
) -> Tensor:
    """The contrastive loss of two views (examples, features) of each example (NT-Xent, Chen et al. 2020).

    The cross-entropy of softmax(cos(z_i, z_j) / temperature) over all j other than i, with the other view of the example as class:
    one loss for each of the 2n views, first views before second views.
    """
    above_0("contrastive", "the temperature", temperature)
    a, b = same_shape("contrastive", first, second)
    if a.ndim != 2:
        raise UserError("contrastive", f"two tensors (examples, features) are required, got shape {a.shape}.")
    views = _unit(concat([a, b]), 1)
    alike = matmul(views, matrix_transpose(views)) / temperature
    count = views.shape[0]
    alike = where(eye(count) > 0.0, -math.inf, alike)
    return cross_entropy(alike, roll(iota(count), count // 2), reduction=reduction)


@in_float32
def margin_ranking(
    first: ArrayLike, second: ArrayLike, target: ArrayLike, *, margin: float = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    """max(0, margin - t (a - b)): a should be larger than b where t is 1, smaller where it is -1."""
    at_least_0("margin_ranking", "margin", margin)
    a, b = same_shape("margin_ranking", first, second)
    d, t = same_shape("margin_ranking", a - b, target)
    return reduced("margin_ranking", relu(margin - t * d), reduction)


def _unit(x: Tensor, axis: int) -> Tensor:
    """Unit vectors in the same direction; zeros stay zeros. The scale cancels, so it needs no derivative."""
    x = x / _scale(x, axis)
    length = norm(x, axis=axis, keepdims=True)
    return x / where(length == 0.0, 1.0, length)


def _length(x: Tensor, order: float) -> Tensor:
    """The length along the last axis, without overflow of the squares."""
    scale = _scale(x, -1)
    return sum(scale, axis=-1) * norm(x / scale, axis=-1, ord=order)


def _scale(x: Tensor, axis: int) -> Tensor:
    largest = stop_gradient(max(abs(x), axis=axis, keepdims=True))
    return where(largest == 0.0, 1.0, largest)


# --- regions -------------------------------------------------------------------------------------------------------------------


@in_float32
def dice(prediction: ArrayLike, target: ArrayLike, *, smooth: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """The Dice loss 1 - (2 sum(p t) + smooth) / (sum(p) + sum(t) + smooth) of probabilities p: 0 for equal regions.

    One loss per example and channel of (batch, channels, spatial...), or per example of (batch, positions). `smooth` defines
    the loss of two empty regions: with 0 it is nan.

    >>> dice([[1.0, 1.0, 0.0, 0.0]], [[1.0, 0.0, 1.0, 0.0]], smooth=0.0).item()
    0.5
    """
    return reduced("dice", _apart("dice", prediction, target, 0.5, 0.5, 0.5 * smooth), reduction)


@in_float32
def tversky(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    alpha: float = 0.5,
    beta: float = 0.5,
    smooth: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """1 - (tp + smooth) / (tp + alpha fp + beta fn + smooth): `dice` with separate weights of false positives and negatives.

    tp = sum(p t), fp = sum(p (1 - t)), fn = sum((1 - p) t), summed as in `dice`.
    """
    at_least_0("tversky", "alpha", alpha)
    at_least_0("tversky", "beta", beta)
    return reduced("tversky", _apart("tversky", prediction, target, alpha, beta, smooth), reduction)


def _apart(name: str, prediction: ArrayLike, target: ArrayLike, alpha: float, beta: float, smooth: float) -> Tensor:
    at_least_0(name, "smooth", smooth)
    p, t = same_shape(name, prediction, target)
    if p.ndim < 2:
        raise UserError(name, f"(batch, places) or (batch, channels, spatial...) is required, got shape {p.shape}.")
    places = tuple(range(1 if p.ndim == 2 else 2, p.ndim))
    both, too_much, missed = (sum(x, axis=places) for x in (p * t, p * (1.0 - t), (1.0 - p) * t))
    return 1.0 - (both + smooth) / (both + alpha * too_much + beta * missed + smooth)


# --- boxes ---------------------------------------------------------------------------------------------------------------------


@in_float32
def iou(prediction: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """1 - intersection over union of two boxes. Boxes are (..., 4): left, top, right, bottom.

    Disjoint boxes give 1 with derivative 0; `giou` has a gradient for them.

    >>> iou([[0.0, 0.0, 2.0, 1.0]], [[1.0, 0.0, 2.0, 1.0]]).item()
    0.5
    """
    a, b = _boxes("iou", prediction, target)
    both, either, _ = _areas(a, b)
    return reduced("iou", 1.0 - _part(both, either), reduction)


@in_float32
def giou(prediction: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """`iou` plus the fraction of the smallest enclosing box that neither covers, from 0 to 2 (Rezatofighi et al. 2019)."""
    a, b = _boxes("giou", prediction, target)
    both, either, around = _areas(a, b)
    return reduced("giou", 1.0 - _part(both, either) + _part(around - either, around), reduction)


def _boxes(name: str, prediction: ArrayLike, target: ArrayLike) -> tuple[Tensor, Tensor]:
    a, b = same_shape(name, prediction, target)
    if a.ndim == 0 or a.shape[-1] != 4:
        raise UserError(name, f"boxes (..., 4) are required, got shape {a.shape}.")
    return a, b


def _areas(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The areas of the intersection, the union and the smallest enclosing box."""
    both = _area(maximum(a[..., :2], b[..., :2]), minimum(a[..., 2:], b[..., 2:]))
    either = _area(a[..., :2], a[..., 2:]) + _area(b[..., :2], b[..., 2:]) - both
    return both, either, _area(minimum(a[..., :2], b[..., :2]), maximum(a[..., 2:], b[..., 2:]))


def _area(low: Tensor, high: Tensor) -> Tensor:
    return prod(relu(high - low), axis=-1)


def _part(x: Tensor, whole: Tensor) -> Tensor:
    """x / whole, and 0 where whole is 0."""
    return where(whole == 0.0, 0.0, x / where(whole == 0.0, 1.0, whole))


def at_least_0(name: str, what: str, value: float) -> None:
    """Check that a setting is 0 or more."""
    if not value >= 0.0:
        raise UserError(name, f"{what} must be 0 or more, got {value}.")


def above_0(name: str, what: str, value: float) -> None:
    """Check that a setting is positive."""
    if not value > 0.0:
        raise UserError(name, f"{what} must be above 0, got {value}.")
