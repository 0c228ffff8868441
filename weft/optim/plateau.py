"""Reduce the learning rate on a plateau. The decision is made in Python between steps and needs no recompilation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from ..errors import UserError
from .checks import fractions, not_negative, positive
from .optimizer import Optimizer


class ReduceOnPlateau:
    """Multiplies the optimizer's learning-rate scale by `factor` after more than `patience` values without improvement.

    A value is an improvement if it beats the best one by `threshold` times its size. The scale is at least `least`.

    >>> import weft
    >>> from weft import optim
    >>> optimizer = optim.sgd(weft.parameter([1.0]), rate=0.5)
    >>> plateau = ReduceOnPlateau(optimizer, factor=0.5, patience=1)
    >>> [plateau.see(loss) for loss in (3.0, 2.0, 2.0, 2.0)]
    [False, False, False, True]
    >>> optimizer.rates()
    [0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        least: float = 0.0,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        fractions("ReduceOnPlateau", factor=factor)
        positive("ReduceOnPlateau", factor=factor)
        not_negative("ReduceOnPlateau", patience=patience, threshold=threshold, least=least)
        if mode not in ("min", "max"):
            raise UserError("ReduceOnPlateau", f"mode must be 'min' or 'max', got {mode!r}.")
        self.optimizer, self.factor, self.patience = optimizer, factor, patience
        self.threshold, self.least, self.mode = threshold, least, mode
        self.best = math.inf if mode == "min" else -math.inf
        self.waited = 0  # values since the best one, or since the last reduction

    def see(self, value: float) -> bool:
        """Record a loss or another monitored value; returns True if the rate was reduced. nan is never an improvement."""
        if self._is_better(float(value)):
            self.best, self.waited = float(value), 0
            return False
        self.waited += 1
        if self.waited <= self.patience:
            return False
        self.waited = 0
        return self._lower()

    def _is_better(self, value: float) -> bool:
        if math.isinf(self.best):
            return value < self.best if self.mode == "min" else value > self.best
        margin = self.threshold * abs(self.best)
        return value < self.best - margin if self.mode == "min" else value > self.best + margin

    def _lower(self) -> bool:
        before = float(self.optimizer.scale.item())
        self.optimizer.scale.assign(max(before * self.factor, min(self.least, before)))
        return bool(self.optimizer.scale.item() < before)  # as it was rounded

    def named_state(self) -> dict[str, float]:
        """The state to save; the scale is part of the optimizer's state."""
        return {"best": self.best, "waited": self.waited}

    def load(self, values: Mapping[str, float]) -> None:
        """Restore a state returned by `named_state`."""
        if set(values) != {"best", "waited"}:
            raise UserError("ReduceOnPlateau", f"best and waited are required, got {', '.join(values) or 'nothing'}.")
        self.best, self.waited = float(values["best"]), int(values["waited"])
