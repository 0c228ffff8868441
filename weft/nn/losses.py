"""Classification losses.

All losses are functions (prediction, target, ...) with a reduction: the "mean" of the losses, their "sum", or "none". They do
not overflow for large inputs. The mean of no losses (an empty batch, or all targets ignored) is nan, the sum is 0. Regression
losses are in regression.py, losses on vectors, regions and boxes in distances.py, CTC in ctc.py.

    loss = nn.loss("huber")
    loss(prediction, target, delta=2.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..errors import UserError
from ..ops.activation import relu, softplus
from ..ops.creation import iota, ones_like
from ..ops.declare import as_float, broadcast_shape, in_float32, normal_axis
from ..ops.elementwise import exp, expm1, log, log1p, sigmoid, where
from ..ops.indexing import pick, take
from ..ops.loss import Reduction, cross_entropy, mae_loss, mse_loss, reduced, same_shape
from ..ops.math import clip
from ..ops.movement import expand_dims, squeeze
from ..ops.reduce import max, sum
from ..ops.statistics import log_softmax, mean
from ..tensor import ArrayLike, Tensor, as_tensor
from .ctc import ctc
from .distances import (
    at_least_0,
    contrastive,
    cosine_distance,
    dice,
    giou,
    iou,
    margin_ranking,
    pair_contrastive,
    triplet_margin,
    tversky,
)
from .regression import gaussian_nll, huber, log_cosh, mape, msle, poisson, smooth_l1

mae, mse = mae_loss, mse_loss
_LEAST_LOG = -100.0  # of a log-probability: bounds the loss of a certain but wrong prediction

# --- of yes and no ---------------------------------------------------------------------------------------------------------


@in_float32
def bce(
    prediction: ArrayLike, target: ArrayLike, *, weight: ArrayLike | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """Binary cross-entropy of probabilities p: -(t log p + (1 - t) log(1 - p)), with logarithms clamped at -100.

    Prefer `bce_with_logits` on logits: it is accurate also where p is nearly 0 or 1.

    >>> round(bce([0.5, 0.5], [1.0, 0.0]).item() / math.log(2.0), 5)
    1.0
    """
    p, t = same_shape("bce", prediction, target)
    yes, no = clip(log(p), _LEAST_LOG), clip(log1p(-p), _LEAST_LOG)
    return reduced("bce", _weighted("bce", -(t * yes + (1.0 - t) * no), weight), reduction)


@in_float32
def bce_with_logits(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    weight: ArrayLike | None = None,
    pos_weight: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy of sigmoid(x): w t log(1 + exp(-x)) + (1 - t) log(1 + exp(x)), w being `pos_weight`.

    `weight` multiplies the losses and `pos_weight` those of positive targets; both broadcast to the shape of the prediction.

    >>> bce_with_logits([1000.0, -1000.0], [1.0, 1.0], reduction="none").tolist()
    [0.0, 1000.0]
    """
    x, t = same_shape("bce_with_logits", prediction, target)
    positive = _weighted("bce_with_logits", t * softplus(-x), pos_weight)
    losses = positive + (1.0 - t) * softplus(x)
    return reduced("bce_with_logits", _weighted("bce_with_logits", losses, weight), reduction)


@in_float32
def multilabel_soft_margin(
    prediction: ArrayLike, target: ArrayLike, *, weight: ArrayLike | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """The mean over the last axis, the classes, of `bce_with_logits`: one loss for each example."""
    losses = bce_with_logits(prediction, target, weight=weight, reduction="none")
    if losses.ndim == 0:
        raise UserError("multilabel_soft_margin", "logits of shape (..., classes) are required, got one number.")
    return reduced("multilabel_soft_margin", mean(losses, axis=-1), reduction)


@in_float32
def focal(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    gamma: float = 2.0,
    alpha: ArrayLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The focal loss -alpha (1 - p)^gamma log p, p the probability of the target: easy examples count less (Lin et al. 2017).

    Targets of the shape of the logits are binary: p = sigmoid(x), with weight `alpha` for 1 and 1 - alpha for 0. Class indices
    select along the last axis: p = softmax(x), and `alpha` has one weight per class.
    """
    at_least_0("focal", "gamma", gamma)
    x, t = as_float(as_tensor(prediction), "focal"), as_tensor(target)
    if x.shape == t.shape:
        t = t.astype(x.dtype)
        wrong, surprise = sigmoid(x) * (1.0 - t) + sigmoid(-x) * t, t * softplus(-x) + (1.0 - t) * softplus(x)
        share = None if alpha is None else as_tensor(alpha, x.dtype).astype(x.dtype)
        weight = None if share is None else share * t + (1.0 - share) * (1.0 - t)
    else:
        surprise = -_chosen("focal", log_softmax(x), t, -1)
        wrong = -expm1(-surprise)
        weight = None if alpha is None else take(_class_weights("focal", alpha, x, -1), t)
    losses = _power(wrong, gamma) * surprise
    return reduced("focal", _weighted("focal", losses, weight), reduction)


def _power(x: Tensor, exponent: float) -> Tensor:
    """x ** exponent with derivative 0 at 0, where that of a fractional power is infinite."""
    return where(x <= 0.0, 1.0 if exponent == 0.0 else 0.0, x**exponent)


@in_float32
def hinge(prediction: ArrayLike, target: ArrayLike, *, margin: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """The hinge loss max(0, margin - t x).

    Targets of the shape of the prediction are binary: t = 1 where they are above 0, else -1. Class indices select along the
    last axis: max(0, margin + the largest other score - the score of the class) (Crammer and Singer 2001).

    >>> hinge([0.5, -2.0], [1, 0], reduction="none").tolist()
    [0.5, 0.0]
    """
    return reduced("hinge", _shortfall("hinge", prediction, target, margin), reduction)


@in_float32
def squared_hinge(
    prediction: ArrayLike, target: ArrayLike, *, margin: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """The square of `hinge`, for each element."""
    short = _shortfall("squared_hinge", prediction, target, margin)
    return reduced("squared_hinge", short * short, reduction)


def _shortfall(name: str, prediction: ArrayLike, target: ArrayLike, margin: float) -> Tensor:
    at_least_0(name, "margin", margin)
    x, t = as_float(as_tensor(prediction), name), as_tensor(target)
    if x.shape == t.shape:
        return relu(margin - where(t > 0, x, -x))
    chosen = _chosen(name, x, t, -1)
    others = where(iota(x.shape[-1]) == expand_dims(t, axis=-1), -math.inf, x)
    return relu(margin + max(others, axis=-1) - chosen)


# --- of classes and distributions --------------------------------------------------------------------------------------------


@in_float32
def nll(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    axis: int = -1,
    weight: ArrayLike | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative log-likelihood of the target class, given log-probabilities; the mean is weighted by the class weights.

    >>> nll([[-1.0, -2.0], [-3.0, -4.0]], [1, 0]).item()
    2.5
    """
    log_p, t = as_float(as_tensor(prediction), "nll"), as_tensor(target)
    keep = t == t if ignore_index is None else t != ignore_index
    safe = where(keep, t, 0)
    losses = -_chosen("nll", log_p, safe, axis)
    counted = ones_like(losses) if weight is None else take(_class_weights("nll", weight, log_p, axis), safe)
    losses, counted = where(keep, losses * counted, 0.0), where(keep, counted, 0.0)
    return reduced("nll", losses, reduction, counted)


def _chosen(name: str, scores: Tensor, target: Tensor, axis: int) -> Tensor:
    """The scores of the target classes."""
    axis = normal_axis(name, axis, scores.ndim)
    expected = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    if target.shape != expected or not target.dtype.is_integer:
        raise UserError(
            name,
            f"integer classes of shape {expected} are required for scores of shape {scores.shape}, got {target._node.type}.",
        )
    return squeeze(pick(scores, expand_dims(target, axis=axis), axis, wraps=False), axis)


def _class_weights(name: str, weight: ArrayLike, scores: Tensor, axis: int) -> Tensor:
    classes, weights = scores.shape[axis], as_tensor(weight, scores.dtype)
    if weights.shape != (classes,):
        raise UserError(name, f"{classes} class weights are required, got shape {weights.shape}.")
    return weights.astype(scores.dtype)


@in_float32
def kl_divergence(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    axis: int = -1,
    log_target: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """sum of t (log t - log q) along the axis: one loss for each distribution. The prediction is log q; 0 log 0 is 0.

    The targets are probabilities t, or their logarithms if `log_target`.
    """
    log_q, t = same_shape("kl_divergence", prediction, target)
    log_t = t if log_target else log(where(t > 0.0, t, 1.0))
    t = exp(t) if log_target else t
    terms = where(t > 0.0, t * (log_t - log_q), 0.0)
    return reduced("kl_divergence", sum(terms, axis=normal_axis("kl_divergence", axis, t.ndim)), reduction)


# --- helpers and the table ----------------------------------------------------------------------------------------------------


def _weighted(name: str, losses: Tensor, weight: ArrayLike | None) -> Tensor:
    if weight is None:
        return losses
    weights = as_tensor(weight, losses.dtype).astype(losses.dtype)
    if broadcast_shape(name, losses.shape, weights.shape) != losses.shape:
        raise UserError(name, f"weights that fit the shape {losses.shape} are required, got {weights.shape}.")
    return losses * weights


Loss = Callable[..., Tensor]
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "nll": nll,
    "bce": bce,
    "bce_with_logits": bce_with_logits,
    "multilabel_soft_margin": multilabel_soft_margin,
    "focal": focal,
    "hinge": hinge,
    "squared_hinge": squared_hinge,
    "kl_divergence": kl_divergence,
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "smooth_l1": smooth_l1,
    "log_cosh": log_cosh,
    "mape": mape,
    "msle": msle,
    "poisson": poisson,
    "gaussian_nll": gaussian_nll,
    "cosine_distance": cosine_distance,
    "triplet_margin": triplet_margin,
    "margin_ranking": margin_ranking,
    "contrastive": contrastive,
    "pair_contrastive": pair_contrastive,
    "dice": dice,
    "tversky": tversky,
    "iou": iou,
    "giou": giou,
    "ctc": ctc,
}


def loss(which: str | Callable[..., Any]) -> Callable[..., Any]:
    """Look up a loss by name; a function is returned unchanged.

    >>> loss("mae")([1.0], [3.0]).item()
    2.0
    """
    if not isinstance(which, str):
        if not callable(which):
            raise UserError("loss", f"the name of a loss or a function is required, got {which!r}.")
        return which
    if which not in LOSSES:
        raise UserError("loss", f"there is no loss {which!r}. Known: {', '.join(LOSSES)}.")
    return LOSSES[which]
