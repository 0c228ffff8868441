"""The settings that all optimizers share."""

from __future__ import annotations

from ..errors import UserError
from ..records import dataclass


@dataclass(frozen=True)
class Common:
    """The settings that all optimizers share."""

    clip_norm: float | None = None  # largest global norm of the gradients
    clip_value: float | None = None  # largest absolute value of an element of the gradients
    accumulate: int = 1  # gradient accumulation: number of calls whose gradients are averaged per update
    average: float | None = None  # decay of the exponential moving average of the parameters, if one is kept
    axis: str | None = None  # of the mesh: gradients are averaged over the processes along it
    zero: int = 0  # ZeRO: 1 shares the optimizer's state between these processes, 2 the gradients, too
    local_steps: int = 1  # local SGD: instead of gradients, parameters are averaged, every this many steps

    def check(self, name: str) -> None:
        for word in ("clip_norm", "clip_value"):
            if (value := getattr(self, word)) is not None and not value > 0:
                raise UserError(name, f"{word} must be greater than 0, got {value}.")
        if self.accumulate < 1:
            raise UserError(name, f"gradients are accumulated over 1 call or more, got accumulate={self.accumulate}.")
        if self.average is not None and not 0.0 < self.average < 1.0:
            raise UserError(name, f"average must lie between 0 and 1, got {self.average}.")
        if self.zero not in (0, 1, 2):
            raise UserError(name, f"zero is 0, 1 or 2, got {self.zero}.")
        if self.local_steps < 1 or (self.local_steps > 1 and self.zero):
            raise UserError(
                name,
                f"local_steps is 1 or more, and 1 with zero, got local_steps={self.local_steps}, zero={self.zero}.",
            )
