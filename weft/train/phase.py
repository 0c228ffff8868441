"""Freezing: which parts of a network are trained in an epoch, and whether that step fits in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..nn.module import Module
from .steps import Steps
from .transfer import parts_of


class Phase:
    """The parts that are trained: with some frozen, the compiled step differs from the later one that trains all."""

    def __init__(
        self,
        model: Module,
        train: Any,
        steps: Steps,
        body: Sequence[str],
        freeze: int,
        freeze_layers: int,
        accumulate: int,
        check_memory: Callable[[Any, int, int], None] | None = None,
    ) -> None:
        """`check_memory`: that of a program which is used instead of the single steps."""
        self.model, self.train, self.steps, self.freeze, self.freeze_layers = model, train, steps, freeze, freeze_layers
        self.pretrained, self.accumulate = parts_of(model, body), accumulate
        self.frozen: bool | None = None
        self._check_memory = check_memory or steps.check_memory

    def begin(self, epoch: int) -> None:
        """Before an epoch. A step that has not run yet is compiled, if it fits in memory."""
        frozen = epoch < self.freeze
        self._freeze(len(self.pretrained) if frozen else self.freeze_layers)
        self.steps.set_mode(training=True)
        if frozen or self.freeze_layers:
            for part in self.pretrained:
                part.eval()  # running statistics of batch norm are used, and stay as they are: small batches know them worse
        if frozen is self.frozen:
            return
        self.frozen = frozen
        gradients = sum(prod(p.shape) * p.dtype.itemsize for p in self.model.parameters())
        try:
            self._check_memory(self.train, self.accumulate, gradients)
        except BaseException:
            self.model.unfreeze()
            raise

    def _freeze(self, count: int) -> None:
        """Freeze the first pretrained parts: all of them at first, so that a new head does not disturb them."""
        for number, part in enumerate(self.pretrained):
            part.freeze() if number < count else part.unfreeze()
