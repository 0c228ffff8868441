"""The learning rate that a run still has before it, from its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import WeftError
from ...jobs.rate_schedules import schedule
from ...jobs.schema import validated
from ...jobs.settings import SETTINGS
from ...ops.convert import asarray
from ...zoo.catalogue import default_rate

POINTS = 101


def planned_rates(settings: Mapping[str, Any], parameters: int | None) -> list[tuple[float, float]]:
    """The learning rate over the epochs of a run; empty where it is not known from the settings."""
    known = {name: value for name, value in settings.items() if name in SETTINGS}
    return list(_planned(json.dumps(known, sort_keys=True, default=str), parameters))


@lru_cache(maxsize=256)
def _planned(text: str, parameters: int | None) -> tuple[tuple[float, float], ...]:
    try:
        settings = validated("studio", json.loads(text), SETTINGS)
        peak = settings["rate"]
        if peak is None and parameters is not None and settings["model"]:
            peak = default_rate(settings["model"], settings["optimizer"], parameters)
        if not isinstance(peak, float):
            return ()
        steps, epochs = 1000, settings["epochs"]
        made = schedule(settings, peak, steps, epochs)
        at = np.linspace(0, steps - 1, POINTS)
        values = np.broadcast_to(made(asarray(at)).numpy() if callable(made) else made, at.shape)
    except (WeftError, KeyError):  # a network or setting that this version does not know
        return ()
    return tuple((float(t * epochs / steps), float(v)) for t, v in zip(at, values, strict=True))
