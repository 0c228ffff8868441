"""Submitting jobs: settings are checked before a job is added, so that what is wrong is known at once and not when its turn comes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UserError
from .checks import check_settings
from .compression_settings import COMPRESSION, check_compression
from .kinds import COMPRESS
from .queue import JobQueue
from .recipes import with_recipe
from .record import JobRecord
from .schema import validated


def submit(queue: JobQueue, given: Mapping[str, Any]) -> JobRecord:
    """Check the settings of a training and add it to the queue."""
    settings = with_recipe("jobs", {**given, "runs": str(queue.root)})
    if settings["data"] is None:
        raise UserError("jobs", "a job requires data, got none. Give data=digits or another dataset.")
    check_settings("train", settings)
    _check_name(queue, settings["name"])
    return queue.add(settings)


def submit_compression(queue: JobQueue, given: Mapping[str, Any]) -> JobRecord:
    """Check the settings of a compression and add it to the queue."""
    settings = validated("jobs", {**given, "runs": str(queue.root)}, COMPRESSION)
    check_compression(settings)
    _check_name(queue, settings["name"])
    return queue.add(settings, COMPRESS)


def _check_name(queue: JobQueue, name: str | None) -> None:
    """A name that another job of the queue will use is taken, though its run folder does not exist yet."""
    for job in queue.jobs() if name is not None else ():
        if not job.state.has_ended and job.readable_settings.get("name") == name:
            raise UserError("jobs", f"a name that is not taken is required, got {name!r}, the name of {job}.")
