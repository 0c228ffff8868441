"""Regression losses: functions of the difference d between prediction and target, and negative log-likelihoods."""

from __future__ import annotations

import math

from ..errors import UserError
from ..ops.activation import softplus
from ..ops.declare import in_float32
from ..ops.elementwise import abs, exp, log, log1p, maximum, where
from ..ops.loss import Reduction, reduced, same_shape
from ..ops.math import clip
from ..tensor import ArrayLike, Tensor, as_tensor
from .distances import above_0


@in_float32
def huber(prediction: ArrayLike, target: ArrayLike, *, delta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """d² / 2 where |d| <= delta, else delta (|d| - delta / 2): quadratic near 0, linear elsewhere.

    >>> huber([0.0, 0.0], [1.0, 3.0], reduction="none").tolist()
    [0.5, 2.5]
    """
    above_0("huber", "delta", delta)
    a, b = same_shape("huber", prediction, target)
    far = abs(a - b)
    return reduced("huber", where(far <= delta, 0.5 * far * far, delta * (far - 0.5 * delta)), reduction)


@in_float32
def smooth_l1(prediction: ArrayLike, target: ArrayLike, *, beta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """`huber` divided by its delta: its slope for large |d| is 1 for every beta."""
    above_0("smooth_l1", "beta", beta)
    losses = huber(prediction, target, delta=beta, reduction="none") / beta
    return reduced("smooth_l1", losses, reduction)


@in_float32
def log_cosh(prediction: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """log(cosh(d)): d² / 2 near 0, |d| - log 2 far away, and smooth everywhere."""
    a, b = same_shape("log_cosh", prediction, target)
    d = a - b
    return reduced("log_cosh", d + softplus(-2.0 * d) - math.log(2.0), reduction)


@in_float32
def mape(prediction: ArrayLike, target: ArrayLike, *, epsilon: float = 1e-7, reduction: Reduction = "mean") -> Tensor:
    """100 |d| / max(|t|, epsilon): the error in percent of the target."""
    above_0("mape", "epsilon", epsilon)
    a, b = same_shape("mape", prediction, target)
    return reduced("mape", 100.0 * abs((a - b) / maximum(abs(b), epsilon)), reduction)


@in_float32
def msle(prediction: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """(log(1 + x) - log(1 + t))²: the squared logarithmic error of nonnegative numbers; negative ones are clipped to 0."""
    a, b = same_shape("msle", prediction, target)
    d = log1p(clip(a, 0.0)) - log1p(clip(b, 0.0))
    return reduced("msle", d * d, reduction)


@in_float32
def poisson(
    prediction: ArrayLike,
    target: ArrayLike,
    *,
    log_input: bool = True,
    epsilon: float = 1e-8,
    reduction: Reduction = "mean",
) -> Tensor:
    """exp(x) - t x: the negative log-likelihood of a count t, up to a term of t alone. x is the log of the expected count.

    Without `log_input`, x is the expected count: x - t log(x + epsilon).
    """
    x, t = same_shape("poisson", prediction, target)
    losses = exp(x) - t * x if log_input else x - t * log(x + epsilon)
    return reduced("poisson", losses, reduction)


@in_float32
def gaussian_nll(
    prediction: ArrayLike,
    target: ArrayLike,
    variance: ArrayLike,
    *,
    epsilon: float = 1e-6,
    full: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """(log v + (x - t)² / v) / 2: the negative log-likelihood of a normal with mean x and variance v, clipped at epsilon.

    The variance is one number or has the shape of the prediction. `full` adds the constant log(2 pi) / 2.
    """
    above_0("gaussian_nll", "epsilon", epsilon)
    a, b = same_shape("gaussian_nll", prediction, target)
    v = as_tensor(variance, a.dtype)
    if v.shape not in ((), a.shape):
        raise UserError("gaussian_nll", f"one variance or the shape {a.shape} is required, got {v.shape}.")
    v = clip(v.astype(a.dtype), epsilon)
    losses = 0.5 * (log(v) + (a - b) * ((a - b) / v)) + (0.5 * math.log(2.0 * math.pi) if full else 0.0)
    return reduced("gaussian_nll", losses, reduction)
