"""Masks that change while a network is trained, inside the compiled step: gradual and movement pruning, and dynamic surgery.

    prune_gradually(model, 0.1, steps=1000)     # the smallest weights, at falling density
    movement_prune(model, 0.1, steps=1000)      # the weights that training moves towards zero (Sanh et al. 2020)
    dynamic_surgery(model, 0.1, steps=1000)     # pruned weights are trained further and may come back (Guo et al. 2016)
    train.fit(model, data)
    fix_masks(model)                            # plain masks from now on

Masks and the number of steps done are state of the network, so checkpoints hold them and resumed training is bit-identical.
"""

from __future__ import annotations

import numpy as np

from ..control import cond
from ..dtypes import float64, int64
from ..errors import UserError
from ..nn.module import Module
from ..ops.convert import asarray
from ..ops.convert import parameter as as_parameter
from ..ops.creation import zeros
from ..ops.elementwise import abs, floor, maximum, where
from ..ops.math import clip, logical_and, logical_or
from ..ops.sorting import argsort
from ..records import dataclass
from ..tensor import ArrayLike, Tensor
from .layers import Weight, by_weight, weights_of
from .masks import Mask


@dataclass(frozen=True)
class MaskSchedule:
    """When a mask changes: every `every` steps, from the first to the last; and the density at the first and at the last."""

    begin: float
    end: float
    first: int
    last: int
    every: int

    def density(self, step: Tensor) -> Tensor:
        """The density after `step` steps: the cubic schedule of Zhu and Gupta (2017)."""
        if self.first == self.last:
            return asarray(self.end, dtype=float64)
        done = clip((step - self.first).astype(float64) / (self.last - self.first), 0.0, 1.0)
        return self.end + (self.begin - self.end) * (1.0 - done) ** 3

    def due(self, step: Tensor) -> Tensor:
        inside = logical_and(step >= self.first, step <= self.last)
        return logical_and(inside, logical_or((step - self.first) % self.every == 0, step == self.last))


class ScheduledMask(Mask):
    """A mask that changes by a schedule, as `revised` computes. A step is a call of the layer in training mode; if layers share the
    weight, or one is called twice, each call counts."""

    def __init__(self, original: ArrayLike, mask: ArrayLike, schedule: MaskSchedule) -> None:
        super().__init__(original, mask)
        self.schedule = schedule
        self.steps = asarray(0, dtype=int64).realize()

    def update(self) -> None:
        given = (self.mask, self.original.detach(), *(tensor.detach() for tensor in self.evidence()), self.steps)
        self.mask.assign(cond(self.schedule.due(self.steps), self.revised, lambda mask, *_: mask, *given))
        self.steps.assign(self.steps + 1)

    def evidence(self) -> tuple[Tensor, ...]:
        """The tensors that it uses besides the original values."""
        return ()

    def revised(self, mask: Tensor, original: Tensor, *evidence: Tensor) -> Tensor:
        """The new mask; the last tensor is the number of steps done."""
        raise UserError(type(self).__name__, "a scheduled mask needs a method revised(self, mask, original, steps).")

    def highest(self, scores: Tensor, steps: Tensor) -> Tensor:
        """A mask of the highest scores, at the scheduled density; the first of equal ones."""
        count = maximum(floor(self.schedule.density(steps) * scores.size + 0.5), 1.0).astype(int64)
        ranks = argsort(argsort(scores.reshape(-1), descending=True))
        return (ranks < count).reshape(scores.shape)


class GradualMask(ScheduledMask):
    """Keeps the largest weights at a falling density; pruned weights stay pruned."""

    def revised(self, mask: Tensor, original: Tensor, *evidence: Tensor) -> Tensor:
        return logical_and(mask, self.highest(where(mask, abs(original), -1.0), evidence[-1]))


class MovementMask(ScheduledMask):
    """Keeps the weights with the highest scores. The gradient of a score is weight * gradient: it falls while the weight moves to zero."""

    def __init__(self, original: ArrayLike, mask: ArrayLike, schedule: MaskSchedule) -> None:
        super().__init__(original, mask, schedule)
        self.scores = as_parameter(zeros(self.original.shape, dtype=self.original.dtype))

    def forward(self) -> Tensor:
        if not self.training:
            return super().forward()
        through = self.mask.astype(self.original.dtype) + (self.scores - self.scores.detach())  # its value is the mask
        return self.original * through

    def evidence(self) -> tuple[Tensor, ...]:
        return (self.scores,)

    def revised(self, mask: Tensor, original: Tensor, *evidence: Tensor) -> Tensor:
        return self.highest(evidence[0], evidence[-1])


class SurgeryMask(ScheduledMask):
    """Keeps the largest weights. All are trained, pruned ones too, and come back when they exceed kept ones by the margin.

    Guo et al. (2016) compare with two fixed thresholds; here they are derived from the density, so that it is reached.
    """

    def __init__(self, original: ArrayLike, mask: ArrayLike, schedule: MaskSchedule, margin: float) -> None:
        super().__init__(original, mask, schedule)
        self.margin = margin

    def forward(self) -> Tensor:
        masked = super().forward()
        return self.original + (masked - self.original).detach() if self.training else masked  # the gradient of all

    def revised(self, mask: Tensor, original: Tensor, *evidence: Tensor) -> Tensor:
        return self.highest(abs(original) * where(mask, 1.0 + self.margin, 1.0 - self.margin), evidence[-1])


# --- networks ----------------------------------------------------------------------------------------------------------------


def prune_gradually(
    model: Module, density: float | dict[str, float], *, steps: int, first: int = 0, every: int = 1
) -> None:
    """Prune the smallest weights of each layer during training, to reach this density after `steps` steps."""
    for one, share, keep in _chosen("prune_gradually", model, density, first, steps, every):
        one.replace(GradualMask(_original(one), keep, MaskSchedule(float(keep.mean()), share, first, steps, every)))


def movement_prune(
    model: Module, density: float | dict[str, float], *, steps: int, first: int = 0, every: int = 1
) -> None:
    """Prune the weights that training moves towards zero, to reach this density after `steps` steps. Suits fine-tuning."""
    for one, share, keep in _chosen("movement_prune", model, density, first, steps, every):
        one.replace(MovementMask(_original(one), keep, MaskSchedule(float(keep.mean()), share, first, steps, every)))


def dynamic_surgery(
    model: Module, density: float | dict[str, float], *, steps: int, first: int = 0, every: int = 1, margin: float = 0.1
) -> None:
    """Prune the smallest weights of each layer during training; pruned ones are trained further, and may come back during these steps."""
    if not 0.0 <= margin < 1.0:
        raise UserError("dynamic_surgery", f"a margin from 0 to below 1 is required, got {margin}.")
    for one, share, keep in _chosen("dynamic_surgery", model, density, first, steps, every):
        schedule = MaskSchedule(float(keep.mean()), share, first, steps, every)
        one.replace(SurgeryMask(_original(one), keep, schedule, margin))


def fix_masks(model: Module) -> None:
    """Make all masks plain masks with their current values."""
    for one in weights_of(model).values():
        made = one.parametrization
        if isinstance(made, ScheduledMask):
            one.replace(Mask(made.original, made.mask.numpy()))


def _chosen(
    where_: str, model: Module, density: float | dict[str, float], first: int, last: int, every: int
) -> list[tuple[Weight, float, np.ndarray]]:
    """The weights, their densities and their current masks."""
    if not (0 <= first <= last and every >= 1):
        raise UserError(where_, f"0 <= first <= steps and every >= 1 are required, got {first}, {last} and {every}.")
    known, found = weights_of(model), []
    for path, share in by_weight(where_, "a density", density, model).items():
        one, made = known[path], known[path].parametrization
        if not 0.0 < share <= 1.0:
            raise UserError(where_, f"a density above 0 and up to 1 is required, got {share} for {path}.")
        if not isinstance(made, Mask | None):
            raise UserError(where_, f"a weight or a pruned weight is required, got {path}, a {type(made).__name__}.")
        keep = np.ones(one.finite_value(where_).shape, np.bool_) if made is None else made.mask.numpy()
        if keep.mean() < share:
            raise UserError(where_, f"a density of at most {keep.mean():.4g} is required for {path}, got {share}.")
        found.append((one, share, keep))
    return found


def _original(one: Weight) -> np.ndarray:
    made = one.parametrization
    return made.original.numpy() if isinstance(made, Mask) else one.value
