"""The queue of jobs: a folder below the runs. Any process may add jobs to it, list, pause, resume and cancel them; a `Runner` runs them.

queue = JobQueue("runs")
job = submit(queue, {"data": "digits", "model": "lenet5", "epochs": 3})    # weft.jobs.submit
Runner(queue).run()                                                        # weft.jobs.runner
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..locks import LockHolder, lock_holder
from .events import POLL
from .kinds import TRAIN
from .record import CANCELLED, FAILED, PAUSED, STOPPED, WAITING, JobRecord, State

FOLDER = ".jobs"  # below the folder of runs


class JobQueue:
    """The jobs below a folder of runs. They start in the order of their numbers."""

    def __init__(self, root: str | os.PathLike[str] = "runs") -> None:
        self.root = Path(root).absolute()
        self.folder = self.root / FOLDER

    def jobs(self) -> list[JobRecord]:
        """All jobs, the oldest first."""
        found = [p for p in self.folder.glob("*") if p.name.isdigit() and (p / "state.json").exists()]
        return [JobRecord(p) for p in sorted(found, key=lambda p: int(p.name))]

    def job(self, number: int | str) -> JobRecord:
        """A job by its number."""
        record = JobRecord(self.folder / str(number))
        if not str(number).isdigit() or not (record.folder / "state.json").exists():
            known = ", ".join(str(job.number) for job in self.jobs()) or "none"
            raise UserError("jobs", f"there is no job {number} in {self.root}. Jobs: {known}.")
        return record

    def add(self, settings: Mapping[str, Any], kind: str = TRAIN) -> JobRecord:
        """Add a job with settings that were checked; `submit` checks those of a training."""
        return JobRecord.create(self.folder, {**settings, "runs": str(self.root)}, kind)

    def cancel(self, job: JobRecord) -> None:
        """Stop a job for good: a waiting one at once, a running one after its step, with a checkpoint."""
        job.stop(CANCELLED)

    def pause(self, job: JobRecord) -> None:
        """Stop a job with a checkpoint and free memory and device; after `resume` it ends with the same result."""
        job.stop(PAUSED)

    def resume(self, job: JobRecord) -> JobRecord:
        """Put a job that was stopped or has failed into the queue again. It continues from its last checkpoint."""
        with job.changing() as now:
            if now.state not in (STOPPED, FAILED):
                raise UserError(
                    "jobs", f"a job that was stopped or has failed is required, got {job}, which is {now.state}."
                )
            job.set(WAITING)
        return job

    def wait(self, job: JobRecord, seconds: float = float("inf")) -> State:
        """Wait until a job has ended, or for so many seconds; its state. Somebody must run the queue meanwhile."""
        limit = time.monotonic() + seconds
        while not job.state.has_ended and time.monotonic() < limit:
            time.sleep(POLL)
        return job.state

    def runner(self) -> LockHolder | None:
        """The process that runs the jobs of this queue."""
        return lock_holder(self.folder)
