"""The update of a pipeline stage: gradients are averaged, clipped by the norm over all stages, and applied.

The stages run different programs, so they communicate between programs, not inside them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from ..dtypes import float64
from ..mesh.mesh import Mesh, run_collective
from ..ops.creation import zeros
from ..optim import Optimizer
from ..precision import LossScale, all_finite
from ..tensor import Tensor, as_tensor
from ..tracing.jit import jit
from .pipeline_stage import PipelineStage
from .pipeline_state import StageTensors


class PipelineParts(Protocol):
    """The attributes of a pipeline that an update needs."""

    mesh: Mesh
    axis: str
    stages: int
    number: int
    micro_batches: int
    optimizer: Optimizer
    tensors: StageTensors
    stage: PipelineStage
    scale: LossScale | None


class PipelineUpdate:
    """Called with the sums of a stage's gradients over micro-batches, and with running statistics."""

    def __init__(self, pipeline: PipelineParts) -> None:
        self.pipeline, self.optimizer, self.scale = pipeline, pipeline.optimizer, pipeline.scale
        self._longest = self.optimizer.common.clip_norm  # for the gradients of all stages, not of this one alone
        self.optimizer.common = replace(self.optimizer.common, clip_norm=None)
        stages_of, here = pipeline.tensors.stages_of, pipeline.number
        names = list(pipeline.tensors.parameters)
        order = [names[_place(p, pipeline.tensors)] for p in self.optimizer.parameters]
        self._order = [names.index(name) for name in order]  # of the gradients, by the optimizer's parameters
        self._counted = [i for i, name in enumerate(order) if stages_of[name][0] == here]
        self.add = jit(_add, donate=("total",))
        self._means, self._apply, self._statistics = jit(self._reduce), jit(self._update), jit(self._apply_statistics)

    def __call__(self, total: list[Tensor], statistics: list[Tensor]) -> None:
        means, square, finite = self._means(self._sum_of_shared(total))
        good = self._everywhere(finite)
        factor = np.float32(1.0)
        if self._longest is not None:
            length, longest = np.float32(np.sqrt(self._summed(np.asarray(square.numpy())))), np.float32(self._longest)
            factor = longest / length if length > longest else np.float32(1.0)
        if good:
            self._apply(means, factor)
        if self.scale is not None:
            self.scale.update(good)
        if statistics:
            self._statistics(statistics)

    # --- programs -----------------------------------------------------------------------------------------------------------------

    def _reduce(self, total: list[Tensor]) -> tuple[list[Tensor], Tensor, Tensor]:
        """The mean gradients, the sum of their squares, and whether all of them are finite."""
        divided = [g / float(self.pipeline.micro_batches) for g in (total[i] for i in self._order)]
        if self.scale is not None:
            divided = [g.astype("float32") / self.scale.scale for g in divided]
        means = self.optimizer.means(divided)
        square = zeros((), dtype=float64)
        if self._longest is not None and self._counted:
            square = self.optimizer.squares(means, self._counted)
        finite = as_tensor(True) if self.scale is None else self.optimizer.agreed(all_finite(divided))
        return means, square, finite

    def _update(self, means: list[Tensor], factor: Tensor) -> None:
        if self._longest is not None:
            means = [g * factor.astype(g.dtype) for g in means]
        self.optimizer.apply_means(means)

    def _apply_statistics(self, collected: list[Tensor]) -> None:
        layout, axis = self.pipeline.stage.collected, self.optimizer.statistics_axis
        assert layout is not None
        assert axis is not None
        layout.apply_of_ranks(collected, axis)

    # --- between programs ---------------------------------------------------------------------------------------------------------

    def _everywhere(self, finite: Tensor) -> bool:
        """Whether the gradients of all stages are finite; only checked with a loss scale."""
        if self.scale is None:
            return True
        bad = self._summed(np.asarray(0.0 if bool(finite.item()) else 1.0, np.float32))
        return float(bad) == 0.0

    def _sum_of_shared(self, total: list[Tensor]) -> list[Tensor]:
        """Sum the gradients of each parameter that several stages use over these stages."""
        tensors = self.pipeline.tensors
        own = list(tensors.parameters)
        found = dict(zip(own, total, strict=True))
        for name in tensors.shared:
            tensor = tensors.whole[name]
            mine = np.asarray(found[name].numpy()) if name in found else np.zeros(tensor.shape, tensor.dtype.numpy)
            everyone = self._summed(mine)
            if name in found:
                found[name] = as_tensor(everyone)
        return [found[name] for name in own]

    def _summed(self, value: np.ndarray) -> np.ndarray:
        """The sum over all stages."""
        pipeline = self.pipeline
        if pipeline.stages == 1:
            return value
        return run_collective("all_reduce", value, pipeline.axis, pipeline.mesh.axes, "sum", "summed")


def _place(parameter: Tensor, tensors: StageTensors) -> int:
    return next(i for i, own in enumerate(tensors.parameters.values()) if own is parameter)


def _add(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(total, more, strict=True)]
