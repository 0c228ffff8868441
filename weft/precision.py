"""The dynamic loss scale: what float16 needs so that small gradients do not vanish, kept inside the graph.

float16 has no numbers below 6e-8, and many gradients of a network are smaller. So the loss is multiplied before it is
differentiated and the gradients are divided afterwards, in float32. The factor is found while training: the scale is doubled
after many good steps in a row, and halved when a gradient overflows, in which case the step must change nothing. All of
it is state and `where`: a compiled step runs without anybody looking at a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

from .derivatives import gradients
from .dtypes import float32, int32
from .errors import UserError
from .ops.convert import asarray
from .ops.elementwise import where
from .ops.math import clip, isfinite, logical_and
from .ops.reduce import all as all_of
from .tensor import ArrayLike, Tensor, as_tensor

LEAST, MOST = 1.0, 2.0**24  # where numbers never overflow the scale would grow for ever


class LossScale:
    """A dynamic loss scale: doubled after many good steps in a row, halved when a gradient overflows.

    >>> import weft
    >>> w, scale = weft.parameter([1.0, 2.0]), LossScale()
    >>> @weft.jit(precision="float16")
    ... def step(x):
    ...     [g], finite = scale.gradients((w * x).sum(), [w])
    ...     scale.step(finite, w, w - 0.5 * g)
    >>> step(weft.asarray([1.0, 1.0]))
    >>> w.tolist()
    [0.5, 1.5]
    >>> step(weft.asarray([float("inf"), 1.0]))
    >>> w.tolist(), scale.scale.item()
    ([0.5, 1.5], 16384.0)
    """

    def __init__(self, start: float = 2.0**15, grow_after: int = 2000) -> None:
        if not (math.isfinite(start) and LEAST <= start <= MOST):
            raise UserError("LossScale", f"a start from {LEAST:g} to {MOST:g} is required, got {start}.")
        if grow_after < 1:
            raise UserError("LossScale", f"the scale can grow after 1 good step or more, got grow_after={grow_after}.")
        self.grow_after = grow_after
        self.scale = asarray(float(start), dtype=float32)
        self.good_steps = asarray(0, dtype=int32)  # in a row, since the scale last changed

    def gradients(
        self,
        loss: Tensor,
        parameters: Sequence[Tensor],
        agreed: Callable[[Tensor], Tensor] = lambda finite: finite,
    ) -> tuple[list[Tensor], Tensor]:
        """The gradients of the loss, and whether all of them are finite, in all processes with `agreed`. The scale is updated."""
        found = self.unscaled_gradients(loss, parameters)
        finite = agreed(all_finite(found))
        self.update(finite)
        return found, finite

    def unscaled_gradients(self, loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the loss, computed with the scale and divided by it. The scale stays: call `update` once for each update of the parameters."""
        used = as_tensor(self.scale)
        return [g.astype(float32) / used for g in gradients(loss.astype(float32) * used, parameters)]

    def step(self, finite: Tensor, tensor: Tensor, value: ArrayLike) -> None:
        """Assign the value to the tensor (a parameter, a moment, statistics) if all gradients were finite."""
        tensor.assign(where(finite, value, tensor))

    def update(self, finite: Tensor | bool, last: Tensor | None = None) -> None:
        """Update the scale after a step whose gradients were finite or not; of several calls that make one update, after the `last` one only.

        A Python bool is for steps that are not part of a compiled function.
        """
        used = as_tensor(self.scale)
        if isinstance(finite, bool):
            used, finite = used.detach(), as_tensor(finite)
        good = self.good_steps + 1
        grows = good >= self.grow_after
        steps = where(logical_and(finite, ~grows), good, 0)
        scale = clip(where(finite, where(grows, used * 2.0, used), used * 0.5), LEAST, MOST)
        self.good_steps.assign(steps if last is None else where(last, steps, self.good_steps))
        self.scale.assign(scale if last is None else where(last, scale, used))


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Whether all elements of all tensors are finite."""
    return reduce(logical_and, (all_of(isfinite(t)) for t in tensors), as_tensor(True))
