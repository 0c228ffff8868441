"""Gradient accumulation: the sum of the gradients of several calls, in the order in which processes sum theirs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ..ops.elementwise import where
from ..ops.math import logical_and
from ..tensor import Tensor, as_tensor
from .transform import zeros_like


class GradientTree:
    """Sums gradients in pairs of neighbours, then pairs of pairs, so n processes give the bits of one that accumulates n batches.

    Level l keeps the sum of the last 2^l gradients while the next 2^l are collected: as many tensors as the number of calls has bits.
    """

    def __init__(self, parameters: Sequence[Tensor], calls: int) -> None:
        self.calls = calls
        self.levels = [[zeros_like(p) for p in parameters] for _ in range((calls - 1).bit_length())]

    def add(self, gs: Sequence[Tensor], which: Sequence[int], call: Tensor) -> list[Tensor]:
        """Add the gradients of the parameters `which` at this call (0, 1, ...); the sums of all, which are complete at the last call."""
        sums, carries = list(gs), as_tensor(True)
        for number, level in enumerate(self.levels):
            is_odd = (call >> number) % 2 == 1
            adds, stores = logical_and(carries, is_odd), logical_and(carries, ~is_odd)
            for n, i in enumerate(which):
                before = as_tensor(level[i])
                total = before + sums[n]
                level[i].assign(where(stores, sums[n], before))
                sums[n] = where(adds, total, sums[n])
            carries = adds
        return sums if self.calls == 1 << len(self.levels) else [self._waiting(i) for i in which]

    def _waiting(self, i: int) -> Tensor:
        """The sum of the levels that are filled after the last call, if the number of calls is no power of two."""
        filled = [as_tensor(level[i]) for n, level in enumerate(self.levels) if self.calls >> n & 1]
        return reduce(lambda low, high: high + low, filled)

    def named_tensors(self) -> dict[str, Tensor]:
        """What is kept between calls."""
        return {f"{n}.{i}": t for n, level in enumerate(self.levels) for i, t in enumerate(level)}
