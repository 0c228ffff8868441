"""Actions on a run: stop it, resume it, extend it, branch off a new one. Everything that takes time becomes a job of the queue."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...locks import lock_holder, writer_of
from ..checkpoints import branch_settings, branch_state, find_checkpoint
from ..checks import check_settings
from ..compression.state import is_compression, read_state
from ..stored import settings_of
from .job_queue import JobQueue
from .kinds import COMPRESS, TRAIN
from .needs import needs_of
from .record import RUNNING, WAITING, JobRecord


def job_of_folder(queue: JobQueue, folder: Path) -> JobRecord | None:
    """The last job that works or worked on a run."""
    wanted = folder.resolve()
    fits = [job for job in queue.jobs() if job.state.run and Path(job.state.run).resolve() == wanted]
    return fits[-1] if fits else None


def stop_run(queue: JobQueue, folder: Path, *, pause: bool = False) -> None:
    """Stop a run after its step, with a checkpoint, whoever started it; `pause` leaves its job in sight, to be resumed."""
    job = job_of_folder(queue, folder)
    if job is not None and job.state.state in (WAITING, RUNNING):
        (queue.pause if pause else queue.cancel)(job)
        return
    holder = lock_holder(folder)
    if holder is None:
        raise UserError("runs", f"a run that is running is required, got {folder.name}, which is not.")
    if not holder.is_here:
        raise UserError("runs", f"{folder.name} runs on {holder.host}: stop it there.")
    os.kill(holder.pid, signal.SIGTERM)


def resume_run(queue: JobQueue, folder: Path, epochs: int | None = None, owner: str = "") -> JobRecord:
    """Continue a run from its last checkpoint, as a job; with `epochs`, until this many are done. A job that was stopped keeps its owner.

    More epochs than planned extend it: the learning rate follows its schedule stretched over all epochs, the new ones included.
    """
    if writer_of(folder) is not None:
        raise UserError("runs", f"a run that is not running is required, got {folder.name}. Stop it first.")
    kind, settings = TRAIN, settings_of("resume", folder)
    if is_compression(folder):
        if epochs is not None:
            raise UserError("runs", f"a training is required to add epochs to, got the compression {folder.name}.")
        kind, settings = COMPRESS, read_state(folder)["settings"]
    if epochs is not None:
        if epochs <= settings["epochs"]:
            raise UserError("runs", f"more than the {settings['epochs']} planned epochs are required, got {epochs}.")
        settings["epochs"] = epochs
        check_settings("resume", settings)
    waiting = job_of_folder(queue, folder)
    if waiting is not None and waiting.state.state == WAITING:
        raise UserError("runs", f"{folder.name} waits already, as {waiting}.")
    if epochs is None and waiting is not None and waiting.state.state != "done":
        return queue.resume(waiting)
    job = queue.add(settings, kind, owner=owner)
    job.set(WAITING, run=str(folder))
    return job


def branch_run(
    queue: JobQueue, folder: Path, checkpoint: str, name: str, changes: Mapping[str, Any], owner: str = ""
) -> JobRecord:
    """A new run from a checkpoint, as a job: with its exact state if it has one, else with its weights and a fresh optimizer."""
    queue.check(needs_of(TRAIN, settings_of("branch", folder)), owner)
    if find_checkpoint(folder, checkpoint).is_exact:
        made = branch_state(folder, checkpoint, name, changes)
        job = queue.add(settings_of("branch", made), owner=owner)
        job.set(WAITING, run=str(made))
        return job
    settings = branch_settings(folder, checkpoint, {**changes, "name": name})
    check_settings("branch", settings)
    return queue.add(settings, owner=owner)
