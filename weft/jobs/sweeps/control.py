"""Pausing and continuing sweeps, whoever started them: a queue, or a command in a terminal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from ...errors import UserError
from ...locks import lock_holder
from ..queue.job_queue import JobQueue
from ..queue.kinds import SWEEP
from ..queue.record import CANCELLED, PAUSED, STOPPED, JobRecord
from .record import SweepRecord, find_sweep
from .sweep import submit_sweep


def job_of_sweep(jobs: Iterable[JobRecord], name: str) -> JobRecord | None:
    """The last job that searched a sweep, or will."""
    found = [one for one in jobs if one.readable_settings.get("name") == name and one.kind == SWEEP]
    return found[-1] if found else None


def pause_sweep(queue: JobQueue, name: str) -> None:
    """Stop the search; the trials that run write a checkpoint and wait until it is continued."""
    job = job_of_sweep(queue.jobs(), name)
    if job is not None and not job.state.has_ended:
        queue.pause(job)
        return
    record = find_sweep(queue.root, name)
    holder = lock_holder(record.folder)
    if holder is None:
        raise UserError("sweeps", f"a sweep that runs is required, got {name}, which does not.")
    if not holder.is_here:
        raise UserError("sweeps", f"{name} runs on {holder.host}: stop it there.")
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(holder.pid, signal.SIGTERM)


def resume_sweep(queue: JobQueue, name: str, trials: int | None = None, owner: str = "") -> JobRecord:
    """Add a sweep to the queue that was paused, stopped or has failed, or one that has ended and gets more trials."""
    record, job = find_sweep(queue.root, name), job_of_sweep(queue.jobs(), name)
    if record.is_searched or (job is not None and not job.state.has_ended):
        raise UserError("sweeps", f"a sweep that does not run is required, got {name}, which runs or waits for its turn.")  # fmt: skip
    wanted = trials if trials is not None else record.plan.trials
    ended = sum(one.has_ended for one in record.trials())
    if ended >= wanted:
        raise UserError("sweeps", f"more trials than the {ended} that have ended are required, got {wanted}.")
    made = submit_sweep(queue, {**sweep_settings(record), "trials": wanted}, owner)
    if job is not None and job.state.state == STOPPED and job.state.why == PAUSED:
        job.stop(CANCELLED)  # the new job takes its place
    return made


def sweep_settings(record: SweepRecord) -> dict[str, str]:
    """The settings that this sweep was made with, as a command takes them."""
    plan = record.plan
    own = {"trials": plan.trials, "jobs": plan.jobs, "sampler": plan.sampler, "pruner": plan.pruner}
    metric = {"metric": ",".join(one.name for one in plan.metrics)} if plan.metrics else {}
    storage = {} if record.storage is None else {"storage": record.storage}
    return {**plan.texts, **{k: str(v) for k, v in own.items()}, **metric, **storage, "name": record.name}
