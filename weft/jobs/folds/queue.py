"""The trainings of a cross-validation as jobs: in a queue of its own, or in the queue of all jobs, which another process runs.

A cross-validation may be begun in one and continued in the other: folds that are done stay as they are, and those that were interrupted go on
from their checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

from ...errors import UserError
from ..events import POLL
from ..queue.job_queue import JobQueue
from ..queue.kinds import TRAIN
from ..queue.record import CANCELLED, DONE, FAILED, LOST, PAUSED, RUNNING, STOPPED, WAITING, JobRecord
from ..queue.runner import Watcher
from ..queue.submission import submit

OWN_QUEUE = ".jobs"  # in the folder of a cross-validation


def fold_name(name: str, number: int) -> str:
    """The name of the run of a fold of this cross-validation."""
    return f"{name}-fold{number}"


def fold_jobs(queue: JobQueue, state: Mapping[str, Any], since: float = 0.0) -> dict[int, JobRecord]:
    """The last job of each fold in a queue, by the number of the fold. Jobs from before `since` are of an older one with its name."""
    folds = {(fold_name(state["name"], k), f"{k}/{state['folds']}"): k for k in range(1, state["folds"] + 1)}
    found: dict[int, JobRecord] = {}
    for job in queue.jobs():
        told = job.readable_settings
        number = folds.get((str(told.get("name")), str(told.get("fold"))))
        if number is not None and job.kind == TRAIN and (job.folder / "job.json").stat().st_mtime >= since:
            found[number] = job
    return found


def joined_jobs(queue: JobQueue, folder: Path, state: Mapping[str, Any], owner: str = "") -> dict[int, JobRecord]:
    """A job of every fold. Those that were stopped or have failed wait again; missing ones are added to the queue."""
    is_own = queue.folder == (folder / OWN_QUEUE).absolute()
    begun = (folder / "folds.json").stat().st_mtime - 1  # written once before the first fold, and again after the last
    own, common = fold_jobs(JobQueue(queue.root, folder / OWN_QUEUE), state), fold_jobs(JobQueue(queue.root), state, begun)  # fmt: skip
    known, elsewhere = (own, common) if is_own else (common, own)
    for number in range(1, state["folds"] + 1):
        job, other = known.get(number), elsewhere.get(number)
        if other is not None and other.state.state == DONE:
            known[number] = other
        elif other is not None and not other.state.has_ended:
            raise UserError("weft train", f"folds that are not being trained are required, got fold {number}, which is {other.state.state} as {other} of {'the queue' if is_own else 'a command'}. Wait for it, or stop it.")  # fmt: skip
        elif job is None:
            known[number] = _added(queue, state, number, owner, other)
        elif job.state.state in (STOPPED, FAILED):
            queue.resume(job)
    return known


def _added(queue: JobQueue, state: Mapping[str, Any], number: int, owner: str, before: JobRecord | None) -> JobRecord:
    """A new job of a fold, which continues the run of the one before."""
    told = {"group": state["name"], **state["annotations"], "fold": f"{number}/{state['folds']}", "name": fold_name(state["name"], number)}  # fmt: skip
    # The name was free when the cross-validation began: a folder of that name is what a killed process left.
    made = submit(queue, {**state["settings"], **told, "exist_ok": True}, owner, is_part=True)
    if before is not None:
        made.set(WAITING, run=before.state.run)
        if before.state.why == PAUSED:  # it must not be resumed too
            before.stop(CANCELLED)
    return made


def follow_jobs(jobs: Mapping[int, JobRecord], watch: Watcher) -> None:
    """Wait until all jobs have ended. When this is left by an error or a signal, those that have not are paused."""
    started = {number for number, job in jobs.items() if job.state.state in (RUNNING, DONE)}
    active = {number for number, job in jobs.items() if job.state.state != DONE}
    try:
        while active:
            for number in sorted(active):
                now = jobs[number].state
                if now.state == RUNNING and number not in started:
                    started.add(number)
                    watch(jobs[number], "started")
                if now.has_ended and now.why != LOST:  # a lost job is put into the queue again by the runner
                    active.discard(number)
                    watch(jobs[number], "ended")
            if active:
                sleep(POLL)
    except BaseException:
        for number in active:
            with suppress(UserError):  # it has just ended
                jobs[number].stop(PAUSED)
        raise
