"""Regression metrics, perplexity, and image quality metrics (PSNR, SSIM)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..errors import UserError
from ..ops.conv import conv
from ..ops.convert import asarray
from ..ops.declare import in_float32
from ..ops.elementwise import abs, exp, log, sqrt, where
from ..ops.loss import cross_entropy, same_shape
from ..ops.movement import reshape
from ..ops.reduce import sum
from ..ops.statistics import mean
from ..tensor import ArrayLike, Tensor


@in_float32
def mae(prediction: ArrayLike, target: ArrayLike) -> Tensor:
    """The mean of |d|."""
    a, b = same_shape("mae", prediction, target)
    return mean(abs(a - b))


@in_float32
def mse(prediction: ArrayLike, target: ArrayLike) -> Tensor:
    """The mean of d²."""
    a, b = same_shape("mse", prediction, target)
    return mean((a - b) * (a - b))


@in_float32
def rmse(prediction: ArrayLike, target: ArrayLike) -> Tensor:
    """The square root of the mean of d²."""
    return sqrt(mse(prediction, target))


@in_float32
def r2(prediction: ArrayLike, target: ArrayLike) -> Tensor:
    """1 - sum(d²) / sum((t - mean t)²): 1 for perfect predictions, 0 for the mean of the targets, negative for worse.

    For constant targets: 1 if they are predicted exactly, else 0.
    """
    a, b = same_shape("r2", prediction, target)
    left, spread = sum((a - b) * (a - b)), sum((b - mean(b)) * (b - mean(b)))
    varies = spread > 0.0
    return where(varies, 1.0 - left / where(varies, spread, 1.0), where(left == 0.0, 1.0, 0.0).astype(left.dtype))


@in_float32
def perplexity(prediction: ArrayLike, target: ArrayLike, *, axis: int = -1, ignore_index: int | None = None) -> Tensor:
    """exp of the mean cross-entropy of logits: the effective number of equally likely classes."""
    return exp(cross_entropy(prediction, target, axis=axis, ignore_index=ignore_index))


@in_float32
def psnr(prediction: ArrayLike, target: ArrayLike, *, peak: float = 1.0) -> Tensor:
    """10 log10(peak² / mse) in decibels, the mean of the images (batch, ...); infinite where images are the same."""
    _check_peak("psnr", peak)
    a, b = same_shape("psnr", prediction, target)
    if a.ndim < 2:
        raise UserError("psnr", f"images (batch, ...) are required, got shape {a.shape}.")
    errors = mean((a - b) * (a - b), axis=tuple(range(1, a.ndim)))
    return mean((2.0 * math.log(peak) - log(errors)) * (10.0 / math.log(10.0)))


@in_float32
def ssim(
    prediction: ArrayLike, target: ArrayLike, *, peak: float = 1.0, window: int = 11, sigma: float = 1.5
) -> Tensor:
    """The structural similarity of images (batch, channels, height, width), 1 for equal images (Wang et al. 2004).

    (2 ma mb + c1) (2 cov + c2) / ((ma² + mb² + c1) (va + vb + c2)), c1 = (0.01 peak)², c2 = (0.03 peak)², the means, variances and
    the covariance under a Gaussian window; the mean over all positions where the window is inside, all channels and all images.
    """
    _check_peak("ssim", peak)
    a, b = same_shape("ssim", prediction, target)
    if a.ndim != 4 or min(a.shape[2:]) < window:
        raise UserError(
            "ssim", f"images (batch, channels, height, width) of {window} or more places are required, got {a.shape}."
        )
    planes = (-1, 1, *a.shape[2:])
    weights = _gaussian(window, sigma).astype(a.dtype)

    def blur(x: Tensor) -> Tensor:
        return conv(conv(x, reshape(weights, (1, 1, -1, 1))), reshape(weights, (1, 1, 1, -1)))

    return mean(_alike(reshape(a, planes), reshape(b, planes), blur, peak))


def _alike(a: Tensor, b: Tensor, blur: Callable[[Tensor], Tensor], peak: float) -> Tensor:
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2
    mean_a, mean_b = blur(a), blur(b)
    var_a, var_b = blur(a * a) - mean_a * mean_a, blur(b * b) - mean_b * mean_b
    both = blur(a * b) - mean_a * mean_b
    brightness = (2.0 * mean_a * mean_b + c1) / (mean_a * mean_a + mean_b * mean_b + c1)
    return brightness * (2.0 * both + c2) / (var_a + var_b + c2)


def _gaussian(size: int, sigma: float) -> Tensor:
    if size < 1 or not sigma > 0.0:
        raise UserError("ssim", f"a window of 1 or more and a sigma above 0 are required, got {size} and {sigma}.")
    places = np.arange(size) - (size - 1) / 2
    weights = np.exp(-0.5 * (places / sigma) ** 2)
    return asarray(weights / weights.sum())


def _check_peak(name: str, peak: float) -> None:
    if not peak > 0.0:
        raise UserError(name, f"the peak, the largest value a pixel can have, must be above 0, got {peak}.")
