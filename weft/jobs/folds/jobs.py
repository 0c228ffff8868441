"""Cross-validations as jobs of a queue: one job that adds the trainings of its folds to the same queue, and waits for them.

job = submit_folds(JobQueue("runs"), {"data": "digits", "model": "lenet", "epochs": 5}, folds=5)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import chdir, nullcontext, suppress
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...io.dataset_names import dataset_name
from ...locks import lock_holder
from ...train.folder import check_run_name
from ..checks import check_settings
from ..definitions import network_label
from ..events import Listener
from ..queue.job_queue import JobQueue
from ..queue.kinds import FOLDS, TRAIN
from ..queue.needs import needs_of
from ..queue.record import JobRecord
from ..recipes import with_recipe
from ..schema import validated
from ..settings import SETTINGS
from .cross_validation import FOLDER, check_folds, cross_validate, find_folds, read_folds, resume_folds, taken_place
from .queue import OWN_QUEUE

WHERE = "jobs"


def submit_folds(queue: JobQueue, given: Mapping[str, Any], folds: int, owner: str = "") -> JobRecord:
    """Check the settings of a cross-validation and add it to the queue. Pausing or cancelling the job pauses its trainings.

    >>> from tempfile import mkdtemp
    >>> job = submit_folds(JobQueue(mkdtemp()), {"data": "digits", "model": "lenet5", "epochs": 2}, folds=5)
    >>> job.settings["name"], job.state.state
    ('digits-lenet5-folds-1', 'waiting')
    """
    settings = checked_folds({**given, "runs": str(queue.root)}, folds)
    queue.check(needs_of(TRAIN, settings), owner, folds)
    name = settings["name"] or _free_name(queue, settings, folds)
    if settings["name"] is not None and (taken := _holder(queue, name, folds)) is not None:
        raise UserError(WHERE, f"a name that is not taken is required, got {name!r}, the name of {taken}. Give another name.")  # fmt: skip
    return queue.add({**settings, "name": name, "folds": folds}, FOLDS, owner=owner)


def checked_folds(given: Mapping[str, Any], folds: int) -> dict[str, Any]:
    """The settings of a cross-validation, checked before data is opened."""
    settings = with_recipe(WHERE, given)
    if settings["data"] is None:
        raise UserError(WHERE, "a job requires data, got none. Give data=digits or another dataset.")
    check_settings("train", {**settings, "name": None})
    check_folds(settings, folds)
    return settings


def folds_job(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """The work of the job: it continues what an earlier attempt, or a command, has begun."""
    own = {name: value for name, value in settings.items() if name in SETTINGS}
    folder = Path(settings["runs"]) / FOLDER / str(settings["name"])
    known = find_folds(str(folder))
    if known is None:
        cross_validate(validated(WHERE, own, SETTINGS), settings["folds"], listener=listener, owner=settings["owner"])
        return
    with _start_folder(known):
        resume_folds(known, listener=listener, owner=settings["owner"])


def _start_folder(folder: Path) -> chdir[str] | nullcontext[None]:
    """Where relative paths of a cross-validation start that was begun by a command elsewhere."""
    before = JobQueue(folder.parent.parent, folder / OWN_QUEUE).jobs()
    return chdir(before[0].start_folder) if before else nullcontext()


def job_of_folds(jobs: Iterable[JobRecord], name: str) -> JobRecord | None:
    """The last job that trains a cross-validation, or will."""
    found = [one for one in jobs if one.readable_settings.get("name") == name and one.kind == FOLDS]
    return found[-1] if found else None


def pause_folds(queue: JobQueue, name: str) -> None:
    """Stop a cross-validation, whoever started it; its trainings write a checkpoint and wait until it is continued."""
    job = job_of_folds(queue.jobs(), name)
    if job is not None and not job.state.has_ended:
        queue.pause(job)
        return
    holder = lock_holder(_existing(queue, name))
    if holder is None:
        raise UserError(WHERE, f"a cross-validation that runs is required, got {name}, which does not.")
    if not holder.is_here:
        raise UserError(WHERE, f"{name} runs on {holder.host}: stop it there.")
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(holder.pid, signal.SIGTERM)


def continue_folds(queue: JobQueue, name: str, owner: str = "") -> JobRecord:
    """Put a cross-validation that was paused, stopped or has failed into the queue; one that a command began, too."""
    job = job_of_folds(queue.jobs(), name)
    if job is not None and job.state.has_ended and job.state.state != "done":
        return queue.resume(job)
    folder = _existing(queue, name)
    state = read_folds(folder)
    if state["done"] or job is not None or lock_holder(folder) is not None:
        is_what = "is finished" if state["done"] else "runs or waits for its turn"
        raise UserError(WHERE, f"a cross-validation that was stopped is required, got {name}, which {is_what}.")
    told = {**state["settings"], **state["annotations"], "name": name, "folds": state["folds"]}
    return queue.add(told, FOLDS, owner=owner)


def _existing(queue: JobQueue, name: str) -> Path:
    check_run_name(WHERE, name)
    found = find_folds(str(queue.root / FOLDER / name))
    if found is None:
        raise UserError(WHERE, f"there is no cross-validation {name} in {queue.root}.")
    return found


def _free_name(queue: JobQueue, settings: Mapping[str, Any], folds: int) -> str:
    made_of = [dataset_name(str(settings["data"])), network_label(str(settings["model"] or "")), "folds"]
    start, number = "-".join(filter(None, made_of)), 1
    while _holder(queue, f"{start}-{number}", folds) is not None:
        number += 1
    return f"{start}-{number}"


def _holder(queue: JobQueue, name: str, folds: int) -> Path | JobRecord | None:
    """What has this name: a folder, or a job that has not begun."""
    check_run_name(WHERE, name)
    job = job_of_folds(queue.jobs(), name)
    waits = job is not None and not job.state.has_ended
    return job if waits else taken_place(queue.root, name, folds)
