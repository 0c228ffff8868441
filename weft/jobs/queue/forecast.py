"""Forecasts of a training before it starts: GPU memory from the shapes of its network, duration from earlier trainings like it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import WeftError
from ...nn.module import without_values
from ...nn.summary import summary
from ...train.making import TrainingPlan
from ...zoo.catalogue import FACTS
from ..networks import build_network, full_name
from .history import MARGIN, past_use
from .kinds import TRAIN
from .needs import GPU, JobNeeds, needs_of

CONTEXT = 500_000_000  # bytes that CUDA, its libraries and the compiled kernels take in each process
KEPT = 1.5  # outputs of layers kept for the backward pass, and their gradients while it runs, relative to the outputs
BATCH = 64


def forecast_needs(queue_folder: Path, settings: Mapping[str, Any], gpus: int = 1) -> JobNeeds:
    """The needs of a training with validated settings. What was measured of one like it counts more than what is computed."""
    before = past_use(queue_folder, TRAIN, settings)
    needs = needs_of(TRAIN, settings, gpus)
    memory = None
    if needs.slot == GPU:
        measured = None if before.memory is None else int(MARGIN * before.memory)
        memory = measured if measured is not None else memory_forecast(settings)
    seconds = None if before.seconds is None else before.seconds * settings["epochs"]
    return needs_of(TRAIN, settings, gpus, memory, seconds)


def memory_forecast(settings: Mapping[str, Any]) -> int | None:
    """Bytes on a GPU with the margin; None for networks whose shapes depend on data that is not open yet."""
    name = full_name(settings["model"]) if settings["model"] else ""
    facts = FACTS.get(name)
    if facts is None or facts.input is None:
        return None
    channels, *size = facts.input
    height, width = settings["size"] or size
    try:
        with without_values():
            model = build_network(name, facts.classes or 1, channels, (height, width))
            cost = summary(model, (1, channels, height, width))
    except WeftError:  # an image size that this network does not take: the job itself will say so
        return None
    batch = settings["batch"] if isinstance(settings["batch"], int) else BATCH
    half = 0.6 if settings["precision"] is not None else 1.0
    share = TrainingPlan(settings["optimizer"], 1e-3).optimizer_share()
    parameters = 4 * cost.parameters * (2 + share)
    step = parameters + KEPT * half * batch * cost.nbytes
    limit = settings["memory"]
    return int(MARGIN * (CONTEXT + (min(step, limit) if limit else step)))
