"""Ensembles as jobs of a queue.

job = submit_ensemble(JobQueue("runs"), ["cv"], {"method": "average"})
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...io.dataset_names import dataset_name
from ...train.folder import RunFolder, check_run_name
from ..events import Listener
from ..job import TASKS
from ..queue.job_queue import JobQueue
from ..queue.kinds import ENSEMBLE
from ..queue.record import JobRecord
from ..schema import Setting, validated
from .ensemble import SETTINGS, check_method, ensemble
from .members import EnsembleMember, find_members

# What people choose; the rest is decided by where the job runs.
CHOICES: dict[str, Setting] = {name: SETTINGS[name] for name in ("method", "soup", "name", "device")}


def submit_ensemble(queue: JobQueue, members: Sequence[str], given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Check that runs make an ensemble and add it to the queue; a cross-validation stands for the runs of its folds."""
    unknown = sorted(set(given) - set(CHOICES))
    if unknown:
        raise UserError("jobs", f"settings of an ensemble ({', '.join(CHOICES)}) are required, got {unknown[0]}.")
    settings = validated("jobs", {**given, "runs": str(queue.root)}, SETTINGS)
    found = find_members(members, settings["runs"])
    check_method(found, settings)
    name = settings["name"] or _free_name(queue, found[0])
    check_run_name("jobs", name)
    if (taken := _holder(queue, name)) is not None:
        raise UserError("jobs", f"a name that is not taken is required, got {name!r}, the name of {taken}. Give another name.")  # fmt: skip
    folders = [str(member.folder.absolute()) for member in found]
    return queue.add({**settings, "name": name, "members": folders}, ENSEMBLE, owner=owner)


def ensemble_job(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """The work of the job. What an attempt that was killed has left is made again."""
    own = validated("jobs", {name: value for name, value in settings.items() if name in SETTINGS}, SETTINGS)
    if run is not None and run.is_dir():
        if "ended" in RunFolder(run).known_summary():
            return  # it was killed after its last step
        shutil.rmtree(run)
    ensemble(settings["members"], own, listener)


def _free_name(queue: JobQueue, first: EnsembleMember) -> str:
    start, number = f"{dataset_name(str(first.settings['data']))}-ensemble", 1
    while _holder(queue, f"{start}-{number}") is not None:
        number += 1
    return f"{start}-{number}"


def _holder(queue: JobQueue, name: str) -> Path | JobRecord | None:
    """What has this name: a run, or a job that has not ended."""
    runs: list[Path | JobRecord] = [place for task in TASKS if (place := queue.root / task / name).exists()]
    jobs = [job for job in queue.jobs() if not job.state.has_ended and job.readable_settings.get("name") == name]
    return next(iter([*runs, *jobs]), None)
