"""Submitting jobs: settings are checked before a job is added, so that mistakes are reported at once and not when the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UserError
from ..checks import check_settings
from ..compression.settings import COMPRESSION, check_compression
from ..recipes import with_recipe
from ..schema import validated
from .forecast import forecast_needs
from .job_queue import JobQueue
from .kinds import COMPRESS, TRAIN
from .record import JobRecord
from .schedule import read_schedule


def submit(
    queue: JobQueue, given: Mapping[str, Any], owner: str = "", priority: str = "normal", gpus: int = 1, is_part: bool = False
) -> JobRecord:  # fmt: skip
    """Check the settings of a training, forecast what it needs, and add it to the queue; `is_part` as in `JobQueue.add`."""
    settings = with_recipe("jobs", {**given, "runs": str(queue.root)})
    if settings["data"] is None:
        raise UserError("jobs", "a job requires data, got none. Give data=digits or another dataset.")
    check_settings("train", settings)
    _check_name(queue, settings["name"])
    return queue.add(settings, TRAIN, forecast_needs(queue.folder, settings, gpus), owner, priority, is_part)


def submit_compression(queue: JobQueue, given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Check the settings of a compression and add it to the queue."""
    settings = validated("jobs", {**given, "runs": str(queue.root)}, COMPRESSION)
    check_compression(settings)
    _check_name(queue, settings["name"])
    return queue.add(settings, COMPRESS, owner=owner)


def _check_name(queue: JobQueue, name: str | None) -> None:
    """A name that another job of the queue will use is taken, though its run folder does not exist yet."""
    for job in queue.jobs() if name is not None else ():
        if not job.state.has_ended and job.readable_settings.get("name") == name:
            raise UserError("jobs", f"a name that is not taken is required, got {name!r}, the name of {job}.")


def retry(queue: JobQueue, job: JobRecord, changes: Mapping[str, Any], owner: str | None = None) -> JobRecord:
    """Submit the training of a job that has ended again, with some settings changed, as a new job of its owner or another."""
    if job.kind != TRAIN or not job.state.has_ended:
        raise UserError("jobs", f"a training that has ended is required, got {job}, which is {job.state.state}.")
    known = {name: value for name, value in job.settings.items() if value is not None and name not in ("runs", "json")}
    if changes.get("name") is None:
        known.pop("name", None)  # its run has that name
    schedule = read_schedule(job.folder)
    known_owner = str(job.submitted().get("owner") or "")
    return submit(queue, {**known, **changes}, known_owner if owner is None else owner, schedule.priority_name)
