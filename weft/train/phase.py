"""Freezing: which parts of a network are trained in an epoch, and whether that step fits in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ..nn.module import Module
from . import memory
from .steps import Steps
from .transfer import parts_of


class Phase:
    """The parts that are trained: with some frozen, the compiled step differs from the later one that trains all."""

    def __init__(
        self, model: Module, train: Any, steps: Steps, body: Sequence[str], freeze: int, accumulate: int
    ) -> None:
        self.model, self.train, self.steps, self.body, self.freeze = model, train, steps, body, freeze
        self.accumulate = accumulate
        self.frozen: bool | None = None

    def begin(self, epoch: int) -> None:
        """Before an epoch. A step that has not run yet is compiled, if it fits in memory."""
        frozen = epoch < self.freeze
        _freeze(self.model, self.body, frozen)
        self.steps.set_mode(training=True)
        if frozen:
            for part in parts_of(self.model, self.body):
                part.eval()  # running statistics of batch norm are used, and stay as they are
        if frozen is self.frozen:
            return
        self.frozen = frozen
        gradients = sum(prod(p.shape) * p.dtype.itemsize for p in self.model.parameters())
        try:
            memory.check(self.steps.train, self.train.dataset, self.train.batch, self.accumulate, gradients)
        except BaseException:
            self.model.unfreeze()
            raise


def _freeze(model: Module, body: Sequence[str], frozen: bool) -> None:
    """Pretrained parts are frozen in the first epochs, so that a new head does not disturb them."""
    for part in parts_of(model, body):
        part.freeze() if frozen else part.unfreeze()
