"""Is data the bottleneck of a training? The loader and the step of its settings, measured alone and together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...data.loader import Loader
from ...insight.data_bottleneck import DataBottleneck
from ...insight.data_timing import SECONDS, data_bottleneck
from ...train.making import make
from ..checks import check_settings
from ..device import profiled_on, training_on
from ..job import job_of
from ..weights import settings_for_weights


def training_bottleneck(settings: Mapping[str, Any], seconds: float = SECONDS, cold: bool = False) -> DataBottleneck:
    """Measure the training of validated settings; each measurement takes so many seconds. No run is made. `cold`: files are read from the disk."""
    with profiled_on(settings["device"]), training_on(settings["device"]) as device:
        check_settings("profile", settings)
        job = job_of("profile", settings_for_weights({**settings, "device": device.name}))
        job.check_memory()
        model, plan = job.model(), job.plan()
        batch = job.usual_batch() if job.settings["batch"] == "auto" else job.settings["batch"]
        _, steps = make(model, Loader(job.train, 1), plan)
        steps.set_mode(training=True)
        found = data_bottleneck(
            job.train,
            steps.train,
            batch=batch,
            workers=settings["workers"],
            prepare=steps.prepare,
            seconds=seconds,
            cold=cold,
        )
        return replace(found, notes=(*(f"note: {note}" for note in job.notes), *found.notes))
