"""Gradients kept within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..ops.elementwise import add, sqrt, where
from ..ops.math import clip
from ..tensor import Tensor
from .transform import wide


def norm(gs: Sequence[Tensor]) -> Tensor:
    """The length of all gradients together, as one long vector."""
    squares = [(g * g).sum() for g in (g.astype(wide(g.dtype)) for g in gs)]
    return sqrt(reduce(add, squares))


def clip_norm(gs: Sequence[Tensor], longest: float) -> list[Tensor]:
    """The gradients made shorter together, if they are longer than this."""
    length = norm(gs)
    factor = where(length > longest, longest / length, 1.0)
    return [g * factor.astype(g.dtype) for g in gs]


def clip_value(gs: Sequence[Tensor], most: float) -> list[Tensor]:
    """Every element of the gradients between -most and most."""
    return [clip(g, -most, most) for g in gs]
