"""What optimizers are made of: transforms, each a small step on the way from gradients to updates.

A transform is given a gradient g, its parameter p, its own state s of that parameter and the number t of the step (1, 2, ...), and
gives what takes the gradient's place. The last one's result is subtracted from the parameter. All of it is graph: a step that is
compiled holds its optimizer. None of it has a history, and 16-bit parameters come as float32: their squares would vanish.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import DType, float32
from ..ops.creation import zeros
from ..ops.elementwise import where
from ..tensor import Tensor, number

State = dict[str, Tensor]


class Transform:
    """One step; a subclass has `start` and `apply`, or `apply_all` if parameters depend on each other."""

    rated = False  # as the last of a chain: whether its result is the whole update, which the rate is part of already

    def start(self, p: Tensor) -> State:
        """The state of a parameter before the first step."""
        return {}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        """What takes the gradient's place. State is changed by `s["name"].assign(...)`."""
        raise NotImplementedError

    def apply_all(
        self, gs: Sequence[Tensor], ps: Sequence[Tensor], states: Sequence[State], t: Tensor
    ) -> Sequence[Tensor]:
        """The same for all parameters together."""
        return [self.apply(g, p, s, t) for g, p, s in zip(gs, ps, states, strict=True)]


def wide(dtype: DType) -> DType:
    """The dtype that updates of parameters of a dtype are computed in."""
    return float32 if dtype.is_half else dtype


def choice(condition: Tensor, yes: float, no: float, dtype: DType) -> Tensor:
    """One of two numbers, in a dtype. `where(condition, 0.9, 0.1)` alone would be float32, which float64 parameters would notice."""
    return where(condition, number(yes, dtype), number(no, dtype))


def zeros_like(p: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Zeros of the parameter's shape, or another one, in memory of their own, to be changed in place."""
    return zeros(p.shape if shape is None else tuple(shape), dtype=wide(p.dtype)).realize()
