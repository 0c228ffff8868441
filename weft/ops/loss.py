"""Basic losses, composed of other ops."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import UserError
from ..tensor import ArrayLike, Tensor, as_tensor, function
from .declare import as_float, in_float32, normal_axis, together
from .elementwise import abs, where
from .indexing import pick, take
from .movement import expand_dims, squeeze
from .reduce import sum
from .statistics import log_softmax, mean

Reduction = Literal["mean", "sum", "none"]


def reduced(name: str, losses: Tensor, reduction: Reduction, weight: Tensor | None = None) -> Tensor:
    if reduction == "none":
        return losses
    if reduction == "sum":
        return sum(losses)
    if reduction != "mean":
        raise UserError(name, f"the reduction must be 'mean', 'sum' or 'none', got {reduction!r}.")
    return mean(losses) if weight is None else sum(losses) / sum(weight)


@function
@in_float32
def cross_entropy(
    logits: ArrayLike,
    target: ArrayLike,
    *,
    axis: int = -1,
    weight: Any = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The cross entropy of softmax(logits) and the target: class indices, or probabilities of the shape of the logits.

    >>> cross_entropy(as_tensor([[0.0, 0.0]]), as_tensor([1])).item() / 0.693147 > 0.999
    True
    """
    logits, target = as_float(as_tensor(logits), "cross_entropy"), as_tensor(target)
    if not 0.0 <= label_smoothing < 1.0:
        raise UserError("cross_entropy", f"a label smoothing in [0, 1) is required, got {label_smoothing}.")
    if ignore_index is not None and not isinstance(ignore_index, int):
        raise UserError("cross_entropy", f"ignore_index must be an int, got {ignore_index!r}.")
    axis = normal_axis("cross_entropy", axis, logits.ndim)
    log_p = log_softmax(logits, axis)
    shape = [1] * logits.ndim
    shape[axis] = -1
    classes = None if weight is None else as_tensor(weight, logits.dtype).astype(logits.dtype)
    if classes is not None and classes.shape != (logits.shape[axis],):
        raise UserError("cross_entropy", f"{logits.shape[axis]} class weights are required, got shape {classes.shape}.")
    if target.dtype.is_float:
        if ignore_index is not None:
            raise UserError("cross_entropy", "ignore_index requires class indices, not probabilities.")
        return _soft(log_p, target, axis, classes, shape, label_smoothing, reduction)
    return _hard(log_p, target, axis, classes, shape, label_smoothing, ignore_index, reduction)


def _soft(
    log_p: Tensor, target: Tensor, axis: int, classes: Tensor | None, shape: list[int], smooth: float, how: Reduction
) -> Tensor:
    if target.shape != log_p.shape:
        raise UserError(
            "cross_entropy", f"target probabilities of shape {log_p.shape} are required, got {target.shape}."
        )
    target = target.astype(log_p.dtype) * (1.0 - smooth) + smooth / log_p.shape[axis]
    terms = target * log_p if classes is None else target * log_p * classes.reshape(shape)
    return reduced("cross_entropy", -sum(terms, axis=axis), how)


def _hard(
    log_p: Tensor,
    target: Tensor,
    axis: int,
    classes: Tensor | None,
    shape: list[int],
    smooth: float,
    ignore_index: int | None,
    how: Reduction,
) -> Tensor:
    expected = (*log_p.shape[:axis], *log_p.shape[axis + 1 :])
    if target.shape != expected or not target.dtype.is_integer:
        raise UserError(
            "cross_entropy",
            f"integer classes of shape {expected} are required for logits of shape {log_p.shape}, got {target._node.type}.",
        )
    keep = None if ignore_index is None else target != ignore_index
    target = target if keep is None else where(keep, target, 0)
    place = expand_dims(target, axis=axis)
    chosen = squeeze(pick(log_p, place, axis, wraps=False), axis)  # class -1 is invalid, not the last class
    per_class = None if classes is None else take(classes, target)
    losses = -chosen if per_class is None else -chosen * per_class
    if smooth:
        spread = log_p if classes is None else log_p * classes.reshape(shape)
        losses = losses * (1.0 - smooth) - sum(spread, axis=axis) * (smooth / log_p.shape[axis])
    counted = per_class
    if keep is not None:
        losses = where(keep, losses, 0.0)
        counted = where(keep, 1.0 if per_class is None else per_class, 0.0).astype(log_p.dtype)
    return reduced("cross_entropy", losses, how, counted)


@function
@in_float32
def mse_loss(prediction: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """The mean of the squared differences.

    >>> mse_loss(as_tensor([1.0, 2.0]), as_tensor([1.0, 4.0])).item()
    2.0
    """
    a, b = same_shape("mse_loss", prediction, target)
    return reduced("mse_loss", (a - b) * (a - b), reduction)


@function
@in_float32
def mae_loss(prediction: ArrayLike, target: ArrayLike, *, reduction: Reduction = "mean") -> Tensor:
    """The mean of the absolute differences."""
    a, b = same_shape("mae_loss", prediction, target)
    return reduced("mae_loss", abs(a - b), reduction)


def same_shape(name: str, prediction: ArrayLike, target: ArrayLike) -> tuple[Tensor, Tensor]:
    """Require equal shapes: broadcasting (n, 1) against (n,) would give (n, n) and a plausible but wrong loss."""
    a, b = as_tensor(prediction), as_tensor(target)
    if a.shape != b.shape:
        raise UserError(name, f"prediction and target of one shape are required, got {a.shape} and {b.shape}.")
    a, b = together(name, a, b)
    return as_float(a, name), as_float(b, name)
