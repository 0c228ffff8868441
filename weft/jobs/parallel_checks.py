"""Checks of the settings of trainings in several processes, before any of them is started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..mesh.world import world
from ..parallel.forms import AUTO
from ..parallel.sizes import ParallelSizes, read_sizes
from ..records import dataclass
from ..train.pipeline_options import PipelineOptions
from ..train.ranks import check_zero
from ..train.server_steps import check_server

PIPELINE_SETTINGS = ("pipeline_schedule", "recompute", "cuts")
NO_VALUES = {
    "pipeline_schedule": None,
    "recompute": False,
    "cuts": None,
    "zero": 0,
    "staleness": None,
    "micro_batches": None,
    "local_steps": 1,
}


def check_parallel(settings: Mapping[str, Any]) -> None:
    """Reject settings of pipelines and of ranks without them."""
    sizes = parallel_sizes(settings)
    check_zero(settings["zero"], None if sizes is None else sizes.data)
    check_server(sizes, settings["staleness"], settings)
    pipeline_options(settings).check(None if sizes is None else sizes.pipeline)


def parallel_sizes(settings: Mapping[str, Any], ranks: int | None = None) -> ParallelSizes | None:
    """The sizes of the setting `parallel` for this many ranks, by default those of this world; None for auto, which chooses them later."""
    return None if settings["parallel"] == AUTO else read_sizes(settings["parallel"], ranks or world().size)


def pipeline_options(settings: Mapping[str, Any]) -> PipelineOptions:
    return PipelineOptions(*(settings[name] for name in PIPELINE_SETTINGS))


@dataclass(frozen=True)
class Inherited:
    """The settings that a run does without when it goes on with another split, with their new values, and why, as notes."""

    settings: dict[str, Any]
    notes: list[str]


def left_out(told: Mapping[str, Any], changed: Mapping[str, Any], ranks: int | None = None) -> Inherited:
    """The settings of a run, not of the command that resumes it, that the new split has no use for."""
    found = Inherited({}, [])
    sizes = parallel_sizes({**told, **changed}, ranks)
    if sizes is None:
        return found

    def leave_out(name: str, why: str) -> None:
        found.settings[name] = NO_VALUES[name]
        found.notes.append(f"{name}= of the run is for {why}, and is left out")

    given = [name for name in PIPELINE_SETTINGS if name not in changed and told[name] != NO_VALUES[name]]
    for name in given if sizes.pipeline == 1 else ():
        leave_out(name, "pipelines")
    if not sizes.server and told["staleness"] is not None and "staleness" not in changed:
        leave_out("staleness", "parameter servers")
    for name in ("zero", "micro_batches", "local_steps") if sizes.server else ():
        if told[name] != NO_VALUES[name] and name not in changed:
            leave_out(name, "ranks that share batches")
    if sizes.data == 1 and told["zero"] and "zero" not in changed:
        leave_out("zero", "ranks that share batches")
    named = told["cuts"] if sizes.pipeline > 1 and "cuts" in given else None
    if isinstance(named, tuple | list) and len(named) != sizes.pipeline - 1:
        leave_out("cuts", f"{len(named) + 1} stages")
    return found
