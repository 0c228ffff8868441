"""Connectionist temporal classification (CTC, Graves et al. 2006): a loss for label sequences without alignment.

A network predicts a distribution over classes, including a blank, at each time step. A path of classes represents the labels
that remain after merging repetitions and dropping blanks. The loss is -log of the probability of all paths that represent the
target, summed by the forward algorithm: in the target with a blank before, between and behind the labels, a path stays at its
position, advances by one, or skips a blank between two different labels.
"""

from __future__ import annotations

import math
from typing import Any

from ..control import scan
from ..dtypes import int64
from ..errors import UserError
from ..ops.creation import full, iota
from ..ops.declare import as_float, in_float32
from ..ops.elementwise import logaddexp, maximum, where
from ..ops.indexing import pick
from ..ops.loss import Reduction, reduced
from ..ops.movement import broadcast_to, cut, expand_dims, pad_axis, reshape, squeeze, stack
from ..tensor import ArrayLike, Tensor, as_tensor

_NEVER = -1e30  # log of 0: finite, so that differences are finite


@in_float32
def ctc(
    prediction: ArrayLike,
    target: ArrayLike,
    input_lengths: ArrayLike | None = None,
    target_lengths: ArrayLike | None = None,
    *,
    blank: int = 0,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log of the probability of the target (batch, labels) under the predicted log-probabilities (time, batch, classes).

    Lengths (batch,) give the valid part of each sequence; the rest is ignored. By default all of it is valid. A target that does not
    fit into its time has infinite loss and no derivative; with `zero_infinity` its loss is 0. The mean is taken over the losses
    divided by the lengths of their targets (by 1 for an empty target), as in PyTorch.

    >>> round(ctc(full((2, 1, 2), math.log(0.5)), [[1]]).item(), 4) == round(-math.log(0.75), 4)
    True
    """
    log_p, labels = as_float(as_tensor(prediction), "ctc"), as_tensor(target)
    _check(log_p, labels, blank)
    time, batch, _ = log_p.shape
    input_sizes = _sizes("input_lengths", input_lengths, batch, time)
    label_sizes = _sizes("target_lengths", target_lengths, batch, labels.shape[1])
    places, jumps = _extended_labels(labels, label_sizes, blank)
    emitted = maximum(pick(log_p, expand_dims(places, axis=0), 2, wraps=False), _NEVER)
    losses = -_total(_forward_algorithm(emitted, jumps, input_sizes), label_sizes)
    losses = where(losses > -_NEVER / 2, 0.0 if zero_infinity else math.inf, losses)
    if reduction == "mean":
        losses = losses / maximum(label_sizes, 1).astype(losses.dtype)
    return reduced("ctc", losses, reduction)


def _check(log_p: Tensor, labels: Tensor, blank: int) -> None:
    if log_p.ndim != 3:
        raise UserError("ctc", f"log-probabilities (time, batch, classes) are required, got shape {log_p.shape}.")
    if labels.ndim != 2 or labels.shape[0] != log_p.shape[1] or not labels.dtype.is_integer:
        raise UserError(
            "ctc", f"integer targets of shape ({log_p.shape[1]}, labels) are required, got {labels._node.type}."
        )
    if not 0 <= blank < log_p.shape[2]:
        raise UserError("ctc", f"the blank must be one of the {log_p.shape[2]} classes, got {blank}.")


def _sizes(name: str, given: ArrayLike | None, batch: int, longest: int) -> Tensor:
    sizes = full(batch, longest, dtype=int64) if given is None else as_tensor(given)
    if sizes.shape != (batch,) or not sizes.dtype.is_integer:
        raise UserError("ctc", f"{name} must be {batch} integers, got {sizes._node.type}.")
    return sizes


def _extended_labels(labels: Tensor, sizes: Tensor, blank: int) -> tuple[Tensor, Tensor]:
    """The labels with blanks around them (batch, 2 labels + 1), and a mask of positions reachable by skipping a blank."""
    batch, count = labels.shape
    labels = where(iota(count) < expand_dims(sizes, axis=1), labels.astype(int64), blank)
    pairs = reshape(stack([full(labels.shape, blank, dtype=int64), labels], axis=2), (batch, 2 * count))
    places = pad_axis(pairs, 1, 0, 1, blank)
    before = _shifted(places, 2, blank)
    return places, (places != blank) & (places != before)


def _forward_algorithm(emitted: Tensor, jumps: Tensor, sizes: Tensor) -> Tensor:
    """The log-probability of each position at the end of each sequence: (batch, positions)."""

    def step(at: Tensor, now: Any) -> tuple[Tensor, None]:
        time, log_p = now
        reached = logaddexp(logaddexp(at, _shifted(at, 1, _NEVER)), where(jumps, _shifted(at, 2, _NEVER), _NEVER))
        return where(expand_dims(time < sizes, axis=1), reached + log_p, at), None

    # Before the first time step a path is at the first blank: it can stay there, or advance to the first label.
    start = where(iota(jumps.shape[1]) == 0, 0.0, _NEVER).astype(emitted.dtype)
    begin = broadcast_to(start, jumps.shape)
    at: Tensor = scan(step, begin, (iota(emitted.shape[0]), emitted))[0]
    return at


def _total(at: Tensor, sizes: Tensor) -> Tensor:
    """A path ends at the last label or at the blank behind it; without labels only at the blank."""
    behind = expand_dims(2 * sizes.astype(int64), axis=1)
    blank = squeeze(pick(at, behind, 1, wraps=False), 1)
    label = squeeze(pick(at, maximum(behind - 1, 0), 1, wraps=False), 1)
    return logaddexp(blank, where(sizes > 0, label, _NEVER))


def _shifted(x: Tensor, by: int, value: float | int) -> Tensor:
    """Shift by some positions, filling the first ones with a value."""
    size = x.shape[1]
    return pad_axis(cut(x, 1, 0, max(size - by, 0)), 1, min(by, size), 0, value)
