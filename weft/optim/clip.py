"""Gradient clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from ..ops.elementwise import add, sqrt, where
from ..ops.math import clip
from ..tensor import Tensor
from .transform import wide


def norm(gs: Sequence[Tensor], total: Callable[[Tensor], Tensor] = lambda squares: squares) -> Tensor:
    """The global norm: the norm of all gradients as one vector. `total` adds the squares of parts that other processes have."""
    squares = [(g * g).sum() for g in (g.astype(wide(g.dtype)) for g in gs)]
    return sqrt(total(reduce(add, squares)))


def clip_norm(
    gs: Sequence[Tensor], longest: float, total: Callable[[Tensor], Tensor] = lambda squares: squares
) -> list[Tensor]:
    """Scale all gradients so that their global norm is at most `longest`."""
    length = norm(gs, total)
    factor = where(length > longest, longest / length, 1.0)
    return [g * factor.astype(g.dtype) for g in gs]


def clip_value(gs: Sequence[Tensor], most: float) -> list[Tensor]:
    """Clip every element of the gradients to [-most, most]."""
    return [clip(g, -most, most) for g in gs]
