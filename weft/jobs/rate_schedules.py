"""The learning rate over a training, from settings. Epochs become steps here; weft.optim.schedules has the formulas."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from ..optim import schedules

# The further settings that each schedule takes.
TAKES = {
    "one_cycle": ("final_rate",), "cosine": ("final_rate",), "linear": ("final_rate",), "constant": (),
    "step": ("milestones", "gamma"), "exponential": ("gamma",), "polynomial": ("power", "final_rate"),
    "inverse": ("gamma", "power"), "sigmoid": ("gamma",), "restarts": ("milestones", "final_rate"),
}  # fmt: skip


def check_schedule(settings: Mapping[str, Any]) -> None:
    """Reject a warmup as long as the training, settings that the schedule does not take, and milestones outside of the training."""
    warmup, epochs, name = settings["warmup"], settings["epochs"], settings["schedule"]
    if warmup is not None and warmup >= epochs:
        raise UserError("weft train", f"warmup is shorter than the {epochs} epochs of the training, got {warmup:g}.")
    for setting in ("final_rate", "milestones", "gamma", "power"):
        if settings[setting] is not None and setting not in TAKES[name]:
            takers = [one for one, taken in TAKES.items() if setting in taken]
            raise UserError("weft train", f"{setting} requires schedule={' or '.join(takers)}, got schedule={name}.")
    bounds = (warmup or 0.0, *(settings["milestones"] or ()), epochs)
    if any(a >= b for a, b in itertools.pairwise(bounds)):
        raise UserError(
            "weft train",
            f"milestones must be epochs that grow, after the warmup and before the end of the training ({epochs}), "
            f"got {', '.join(f'{m:g}' for m in settings['milestones'])}.",
        )


def schedule(settings: Mapping[str, Any], peak: float, steps: int, epochs: int) -> Any:
    """The learning rate over so many steps: a number or a schedule."""
    name, final = settings["schedule"], settings["final_rate"]
    warm = None if settings["warmup"] is None else min(round(settings["warmup"] * steps / epochs), steps - 1)
    if name == "one_cycle" and warm != 0:
        rise = {} if warm is None else {"rise": warm / steps}
        end = {} if final is None or peak == 0.0 else {"end": final / peak}
        return schedules.one_cycle(peak, steps, **rise, **end)
    falling = _after_warmup(settings, peak, max(1, steps - (warm or 0)), steps / epochs, warm or 0)
    return schedules.warmup(falling, warm) if warm else falling


def _after_warmup(settings: Mapping[str, Any], peak: float, steps: int, per_epoch: float, warm: int) -> Any:
    """The rate from its peak on; `per_epoch` are steps of an epoch. Defaults are shares of the steps, as those of Caffe's policies in DIGITS."""
    name, final, gamma, power = (
        settings["schedule"],
        settings["final_rate"] or 0.0,
        settings["gamma"],
        settings["power"],
    )
    given = [round(m * per_epoch) - warm for m in settings["milestones"] or ()]
    if name in ("cosine", "one_cycle"):
        return schedules.cosine(peak, steps, final)
    if name == "linear":
        return schedules.linear(peak, final, steps)
    if name == "step":
        return schedules.multistep(peak, _inner(given or [steps // 3, 2 * steps // 3], steps), gamma or 0.1)
    if name == "exponential":
        return schedules.exponential(peak, 0.95 ** (100 / steps) if gamma is None else gamma ** (1 / per_epoch))
    if name == "polynomial":
        return schedules.polynomial(peak, steps, final, power or 2.0)
    if name == "inverse":
        return schedules.inv(peak, 10 / steps if gamma is None else gamma / per_epoch, power or 0.5)
    if name == "sigmoid":
        return schedules.sigmoid(peak, 10 / steps if gamma is None else gamma / per_epoch, steps // 2)
    if name == "restarts":
        starts = [0, *_inner(given or [steps // 7, 3 * steps // 7], steps), steps]
        lengths = [b - a for a, b in itertools.pairwise(starts)]
        return schedules.join([(schedules.cosine(peak, length, final), length) for length in lengths])
    return peak


def _inner(places: list[int], steps: int) -> list[int]:
    """Steps that grow, without the ends: milestones may coincide where few steps stand for many epochs."""
    return sorted({place for place in places if 0 < place < steps}) or [max(1, steps - 1)]
