"""The two compiled functions of training: the training step and the validation step."""

from __future__ import annotations

from collections.abc import Mapping

from ..dtypes import bool_, int64
from ..metrics import Metric
from ..nn.module import Module
from ..nn.statistics_of_ranks import statistics_of_ranks
from ..ops.convert import asarray
from ..ops.elementwise import where
from ..ops.math import isfinite, logical_and
from ..optim import Optimizer
from ..precision import LossScale
from ..tensor import Tensor
from ..tracing.jit import jit
from .names import Loss
from .task import alike, prediction_of


class Steps:
    """Forward, backward, optimizer and metrics in one native call a batch, without reading a value in between."""

    def __init__(
        self,
        model: Module,
        prepare: Module,
        loss: Loss,
        optimizer: Optimizer,
        meters: Mapping[str, Metric],
        checks: Mapping[str, Metric],
        precision: str | None,
        scale: LossScale | None,
        *,
        training_loss: Loss | None = None,
        mix: Module | None = None,
    ) -> None:
        """`training_loss` (with label smoothing, say) and `mix` (MixUp, CutMix) hold for training only, not for validation."""
        self.model, self.prepare, self.loss, self.optimizer, self.scale = model, prepare, loss, optimizer, scale
        self.training_loss, self.mix = training_loss or loss, mix
        self.meters, self.checks = meters, checks  # of training, and of validation
        self.first_bad = asarray(-1, dtype=int64).realize()  # the step whose loss was the first to be nan or infinite
        self.train = jit(self._train, precision=precision)
        self.check = jit(self._check, precision=precision)

    def set_mode(self, *, training: bool) -> None:
        """Switch dropout and augmentation on or off."""
        self.model.train(training)
        self.prepare.train(training)

    def _train(self, x: Tensor, y: Tensor) -> Tensor:
        with self.optimizer.in_micro_batch(), statistics_of_ranks(self.optimizer.statistics_axis):
            x = self.prepare(x)
            x, mixed = (x, y) if self.mix is None else self.mix(x, y)
            prediction = alike(prediction_of(self.model(x)), y)
        loss = self.training_loss(prediction, mixed)
        self._watch(loss)
        self.optimizer.minimize(loss, self.scale)
        self._measure(self.meters, prediction, y, loss, x.shape[0])
        return loss

    def _check(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.prepare(x)
        prediction = alike(prediction_of(self.model(x)), y)
        self._measure(self.checks, prediction, y, self.loss(prediction, y), x.shape[0])
        return prediction

    def _watch(self, loss: Tensor) -> None:
        fresh = logical_and(~isfinite(loss).astype(bool_), self.first_bad < 0)
        self.first_bad.assign(where(fresh, self.optimizer.steps, self.first_bad))

    def _measure(self, meters: Mapping[str, Metric], prediction: Tensor, y: Tensor, loss: Tensor, count: int) -> None:
        for name, meter in meters.items():
            if name == "loss":
                meter.update(loss.detach(), weight=float(count))  # type: ignore[attr-defined]
            else:
                meter.update(prediction.detach(), y)  # type: ignore[attr-defined]
