"""Gradient transforms, of which optimizers are composed.

A transform maps a gradient g, given its parameter p, its state s for that parameter and the number t of the step (1, 2, ...), to a
new gradient. The result of the last transform is subtracted from the parameter. Transforms are part of the graph, so a compiled step
includes its optimizer. They are not differentiated, and 16-bit parameters are passed as float32, because squares would underflow.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..dtypes import DType, finfo, float32
from ..ops.creation import zeros
from ..ops.elementwise import abs, where
from ..tensor import Tensor, number

State = dict[str, Tensor]


class Transform:
    """A gradient transform; a subclass has `start` and `apply`, or `apply_all` if parameters depend on each other."""

    elementwise = True  # an element of the result depends on the same element of its operands only
    rated = False  # as the last of a chain: whether its result already includes the learning rate

    def start(self, p: Tensor) -> State:
        """The state of a parameter before the first step."""
        return {}

    def apply(self, g: Tensor, p: Tensor, s: State, t: Tensor) -> Tensor:
        """The transformed gradient. State is updated by `s["name"].assign(...)`."""
        raise NotImplementedError

    def apply_all(
        self, gs: Sequence[Tensor], ps: Sequence[Tensor], states: Sequence[State], t: Tensor
    ) -> Sequence[Tensor]:
        """`apply` for all parameters of a group."""
        return [self.apply(g, p, s, t) for g, p, s in zip(gs, ps, states, strict=True)]


def wide(dtype: DType) -> DType:
    """The dtype that updates of parameters of a dtype are computed in."""
    return float32 if dtype.is_half else dtype


def choice(condition: Tensor, yes: float, no: float, dtype: DType) -> Tensor:
    """One of two numbers, in a dtype. `where(condition, 0.9, 0.1)` alone would be float32 and lose precision for float64 parameters."""
    return where(condition, number(yes, dtype), number(no, dtype))


def without_subnormals(average: Tensor) -> Tensor:
    """An average, 0 where it is below the smallest normal number.

    Averages of gradients that have become 0 decay until they are subnormal and remain so. x86 CPUs take hundreds of cycles for every operation
    on such numbers: a hundredth of them makes the step of an MLP 1.6 times as slow.
    """
    return where(abs(average) < number(finfo(average.dtype).smallest_normal, average.dtype), 0.0, average)


def zeros_like(p: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Zeros of the parameter's shape, or another one, in their own memory, to be updated in place."""
    return zeros(p.shape if shape is None else tuple(shape), dtype=wide(p.dtype)).realize()
