"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from ..dtypes import float32, float64
from ..mesh.parts import Part
from ..ops.collective import all_reduce
from ..ops.elementwise import add, sqrt, where
from ..ops.math import clip
from ..tensor import Tensor

Total = Callable[[Tensor], Tensor]  # a sum over processes
Along = Callable[[Tensor, str], Tensor]  # a sum over those along an axis


def squared_norm(
    gs: Sequence[Tensor], parts: Sequence[Part | None] = (), total: Total = lambda x: x, along: Along = all_reduce
) -> Tensor:
    """The sum of the squares of all elements of gradients, in float64: rounded to float32, it does not depend on who adds what first.

    `parts`: parameters of which each process has only its part. `total` adds what processes share of all of them.
    """
    squares = [(g * g).sum() for g in (g.astype(float64) for g in gs)]
    axes = [None if part is None else part.axis for part in parts or [None] * len(gs)]
    totals = []
    for axis in dict.fromkeys(axes):
        added = reduce(add, [s for s, a in zip(squares, axes, strict=True) if a == axis])
        totals.append(added if axis is None else along(added, axis))
    return total(reduce(add, totals))


def norm(
    gs: Sequence[Tensor], parts: Sequence[Part | None] = (), total: Total = lambda x: x, along: Along = all_reduce
) -> Tensor:
    """The global norm: the norm of all gradients as one vector."""
    dtype = float64 if any(g.dtype is float64 for g in gs) else float32
    return sqrt(squared_norm(gs, parts, total, along)).astype(dtype)


def clip_factor(length: Tensor, longest: float) -> Tensor:
    """What gradients of a global norm are multiplied with, so that it is at most `longest`."""
    return where(length > longest, longest / length, 1.0)


def clip_norm(
    gs: Sequence[Tensor],
    longest: float,
    parts: Sequence[Part | None] = (),
    total: Total = lambda x: x,
    along: Along = all_reduce,
) -> list[Tensor]:
    """Scale all gradients so that their global norm is at most `longest`."""
    factor = clip_factor(norm(gs, parts, total, along), longest)
    return [g * factor.astype(g.dtype) for g in gs]


def clip_value(gs: Sequence[Tensor], most: float) -> list[Tensor]:
    """Clip every element of the gradients to [-most, most]."""
    return [clip(g, -most, most) for g in gs]
