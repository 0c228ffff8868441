"""The two compiled functions of training: the training step and the validation step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from ..data.loader import Loader
from ..dtypes import bool_, int64
from ..metrics import Metric
from ..nn.module import Module
from ..nn.statistics_of_ranks import CollectedStatistics, collecting_statistics, statistics_of_ranks
from ..ops.convert import asarray
from ..ops.elementwise import where
from ..ops.math import isfinite, logical_and
from ..ops.movement import concat
from ..optim import Optimizer
from ..parallel.pipeline_state import StageTensors
from ..precision import LossScale
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import Jit, jit
from . import memory
from .names import Loss
from .task import match_target_shape, prediction_of


@dataclass(frozen=True)
class StepParts:
    """What training and validation steps are made of, besides the optimizer.

    `training_loss` (with label smoothing, say) and `mix` (MixUp, CutMix) hold for training only, not for validation.
    """

    model: Module
    prepare: Module
    loss: Loss
    meters: Mapping[str, Metric]  # of training
    checks: Mapping[str, Metric]  # of validation
    precision: str | None
    scale: LossScale | None
    training_loss: Loss
    mix: Module | None
    multiple: int = 1  # of examples that the network takes, because processes share them
    memory: int | str | None = None  # limit of a training step

    def inputs(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The network's inputs and the targets of a batch, in training."""
        x = self.prepare(x)
        return (x, y) if self.mix is None else self.mix(x, y)

    def measure(self, meters: Mapping[str, Metric], prediction: Tensor, y: Tensor, loss: Tensor) -> None:
        """Add a batch to metrics."""
        for name, meter in meters.items():
            if name == "loss":
                meter.update(loss.detach(), weight=float(y.shape[0]))  # type: ignore[attr-defined]
            else:
                meter.update(prediction.detach(), y)  # type: ignore[attr-defined]


class Steps:
    """Forward, backward, optimizer and metrics in one native call a batch, without reading a value in between."""

    def __init__(self, parts: StepParts, optimizer: Optimizer) -> None:
        self.parts, self.optimizer, self.model, self.prepare = parts, optimizer, parts.model, parts.prepare
        self.meters, self.checks = parts.meters, parts.checks
        self.first_bad = asarray(-1, dtype=int64).realize()  # the step whose loss was the first to be nan or infinite
        self.train: Jit[Any] = jit(self._train, precision=parts.precision, memory=parts.memory)
        self._check_program = jit(self._check, precision=parts.precision)
        self._statistics: list[Tensor] = []  # of the batches of this step so far
        self._apply: Jit[Any] | None = None

    def set_mode(self, *, training: bool) -> None:
        """Switch dropout and augmentation on or off."""
        self.model.train(training)
        self.prepare.train(training)

    @property
    def cuts(self) -> list[str]:
        """The last layers of the stages of a pipeline but the last; none otherwise."""
        return []

    @property
    def stages(self) -> StageTensors | None:
        """Which tensors of the network this process has, if it is a stage of a pipeline."""
        return None

    def step(self, x: Any, y: Any) -> Tensor:
        """Train on a batch; its loss."""
        loss, statistics = self.train(x, y)
        if statistics:
            self._apply_last([*self._statistics, *statistics])
        return loss  # type: ignore[no-any-return]

    def loss_of_step(self, x: Tensor, y: Tensor) -> Tensor:
        """Train on a batch, inside of a larger program; its loss."""
        loss, statistics = self._train(x, y)
        assert not statistics, "several processes share the statistics of a step"
        return loss

    def check(self, x: Any, y: Any, shown: bool = True) -> Any:
        """Measure a batch of validation data; the predictions, if they are to be shown."""
        return self._check_program(x, y)

    def check_memory(self, train: Any, accumulate: int, gradients: int) -> None:
        """Compile the training step, if it fits in memory; see `memory.check`."""
        parts = train.shard.micro_batches if isinstance(train, Loader) else 1
        memory.check(self.train, train.dataset, train.batch // parts, accumulate, gradients, parts)

    def synchronize(self) -> None:
        """Give processes that train by themselves (local SGD) the means of their parameters, states and running statistics."""
        self.optimizer.synchronize(self._running_statistics())

    def _train(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        statistics = self._running_statistics()
        before = [t._node for t in statistics]
        with self.optimizer.in_micro_batch(), self._statistics_of_batch() as collected:
            given, target = self.parts.inputs(x, y)
            prediction = match_target_shape(prediction_of(self.model(given)), y)
        loss = self.parts.training_loss(prediction, target)
        self._note(prediction, y, loss)
        self.optimizer.minimize(loss, self.parts.scale)
        self.optimizer.average_ranks([t for t, old in zip(statistics, before, strict=True) if t._node is not old])
        if collected is None:
            return loss, []
        self._apply = jit(partial(self._apply_all, collected))
        return loss, collected.vector()

    def _note(self, prediction: Tensor, y: Tensor, loss: Tensor) -> None:
        """Update the metrics of training, and note a loss that is not finite."""
        fresh = logical_and(~isfinite(loss).astype(bool_), self.first_bad < 0)
        self.first_bad.assign(where(fresh, self.optimizer.steps, self.first_bad))
        self.parts.measure(self.meters, prediction, y, loss)

    def _check(self, x: Tensor, y: Tensor) -> Tensor:
        missing = -x.shape[0] % self.parts.multiple
        filled = concat([x, *[x[-1:]] * missing]) if missing else x
        prediction = prediction_of(self.model(self.prepare(filled)))
        prediction = match_target_shape(prediction[: x.shape[0]] if missing else prediction, y)
        self.parts.measure(self.checks, prediction, y, self.parts.loss(prediction, y))
        return prediction

    def _running_statistics(self) -> list[Tensor]:
        return [t for t in self.model.named_state().values() if t.dtype.is_float]

    # --- running statistics -----------------------------------------------------------------------------------------------------------

    def _statistics_of_batch(self) -> AbstractContextManager[CollectedStatistics | None]:
        """Inside, running statistics wait for those of other processes; if this one has several batches of a step, for the last one."""
        axis = self.optimizer.statistics_axis
        if axis is None or self.optimizer.common.accumulate == 1:
            return statistics_of_ranks(axis)
        return collecting_statistics()

    def _apply_last(self, collected: list[Tensor]) -> None:
        """Apply the statistics of all batches of a step, if this was the last one."""
        self._statistics = collected
        if len(collected) == self.optimizer.common.accumulate:
            assert self._apply is not None
            self._apply(collected)
            self._statistics = []

    def _apply_all(self, layout: CollectedStatistics, collected: Sequence[Tensor]) -> None:
        axis = self.optimizer.statistics_axis
        assert axis is not None
        layout.apply_of_ranks(collected, axis)
