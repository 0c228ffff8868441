"""The queue of jobs: a folder below the runs. Any process may add jobs to it, list, move, hold, pause, resume and cancel them; a `Runner` runs them.

queue = JobQueue("runs")
job = submit(queue, {"data": "digits", "model": "lenet5", "epochs": 3})    # weft.jobs.submit
Runner(queue).run()                                                        # weft.jobs.queue.runner
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...locks import LockHolder, lock_holder
from ..events import POLL
from .kinds import TRAIN
from .locked_file import locked
from .needs import GPU, JobNeeds, check_device, needs_of
from .order import QueueOrder, change_order
from .plan import read_slots
from .quotas import read_quotas
from .record import CANCELLED, FAILED, PAUSED, STOPPED, WAITING, JobRecord, State
from .schedule import JobSchedule, change_schedule, priority_of, read_schedule
from .slots import gpu_slots
from .view import QueueView

FOLDER = ".jobs"  # below the folder of runs


class JobQueue:
    """The jobs below a folder of runs. They start by priority, then in the order of their numbers unless they were moved."""

    def __init__(self, root: str | os.PathLike[str] = "runs", folder: str | os.PathLike[str] | None = None) -> None:
        """`folder` is for the jobs of one command, which no other runner starts; their runs are below `root` all the same."""
        self.root = Path(root).absolute()
        self.folder = self.root / FOLDER if folder is None else Path(folder).absolute()

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

    def add(
        self, settings: Mapping[str, Any], kind: str = TRAIN, needs: JobNeeds | None = None, owner: str = "", priority: str = "normal",
        is_part: bool = False,
    ) -> JobRecord:  # fmt: skip
        """Add a job with settings that were checked; `submit` checks those of a training, and forecasts what it needs.

        A job that needs a device that there is not, and one beyond the quota of its owner, are rejected. `is_part`: a training of a sweep or a
        cross-validation, which was within the quota when it was added.
        """
        schedule, needs = JobSchedule(priority=priority_of(priority)), needs or needs_of(kind, settings)
        check_device(needs, self.gpus)
        with nullcontext() if is_part else self._within_quota(owner, needs.slot):
            return JobRecord.create(self.folder, {**settings, "runs": str(self.root)}, kind, needs, owner, schedule)

    def gpus(self) -> list[str]:
        """The GPUs that jobs of this queue can have: those of its runner; while there is none, also those of this machine."""
        offered = read_slots(self.folder)
        known = [slot.name for slot in offered.slots if slot.kind == GPU] if offered is not None else []
        if self.runner() is None:
            known += [slot.name for slot in gpu_slots()]
        return sorted(set(known))

    def check(self, needs: JobNeeds, owner: str = "", more: int = 1) -> None:
        """Raise the error that adding this many jobs would raise, before anything is prepared for them."""
        check_device(needs, self.gpus)
        self._check_quota(owner, needs.slot, more)

    def _check_quota(self, owner: str, slot: str, more: int = 1) -> None:
        quota = read_quotas(self.folder).get(owner)
        if quota is not None:
            waiting = [one for one in QueueView(self.folder).jobs() if one.state.state == WAITING]
            quota.check(owner, slot, sum(one.owner == owner for one in waiting), more)

    @contextmanager
    def _within_quota(self, owner: str, slot: str) -> Iterator[None]:
        """Inside, this owner may add one job; no other process adds one for them at the same time."""
        if owner not in read_quotas(self.folder):
            yield
            return
        with locked(self.folder / ".quotas.lock"):
            self._check_quota(owner, slot)
            yield

    def cancel(self, job: JobRecord) -> None:
        """Stop a job for good: a waiting one at once, a running one after its step, with a checkpoint."""
        job.stop(CANCELLED)

    def pause(self, job: JobRecord) -> None:
        """Stop a job with a checkpoint and free memory and device; after `resume` it ends with the same result."""
        job.stop(PAUSED)

    def resume(self, job: JobRecord) -> JobRecord:
        """Put a job that was stopped or has failed into the queue again. It continues from its last checkpoint."""
        view = QueueView(self.folder).read(job)
        with self._within_quota(view.owner, view.needs.slot), job.changing() as now:
            if now.state not in (STOPPED, FAILED):
                raise UserError(
                    "jobs", f"a job that was stopped or has failed is required, got {job}, which is {now.state}."
                )
            change_schedule(job.folder, lambda one: replace(one, losses=0, held=False))
            job.set(WAITING)
        return job

    # --- order ------------------------------------------------------------------------------------------------------------------

    def hold(self, job: JobRecord, by: str = "") -> None:
        """Keep a waiting job from starting, until it is released."""
        self._require_waiting(job)
        change_schedule(job.folder, lambda one: replace(one, held=True, held_by=by, held_at=round(time.time(), 3)))

    def release(self, job: JobRecord) -> None:
        """Let a job that was held start when its turn comes."""
        if not read_schedule(job.folder).held:
            raise UserError("jobs", f"a job that is held is required, got {job}, which is {job.state.state}.")
        change_schedule(job.folder, lambda one: replace(one, held=False))

    def prioritize(self, job: JobRecord, priority: str) -> None:
        """Give a job the priority low, normal or high."""
        value = priority_of(priority)
        self._require_waiting(job)
        change_schedule(job.folder, lambda one: replace(one, priority=value))

    def move(self, job: JobRecord, before: JobRecord | None = None, by: int | None = None) -> None:
        """Move a waiting job before another, `by` places (-1 is one up), or to the end. Among jobs of another priority it takes theirs."""
        self._require_waiting(job)
        if before is not None:
            self._require_waiting(before)
            if before.number == job.number:
                return
        change_order(self.folder, lambda known: self._moved(known, job, before, by))

    def pause_all(self) -> None:
        """Start no more jobs; running ones continue."""
        change_order(self.folder, lambda known: replace(known, paused=True))

    def resume_all(self) -> None:
        """Start jobs again."""
        change_order(self.folder, lambda known: replace(known, paused=False))

    def _moved(self, known: QueueOrder, job: JobRecord, before: JobRecord | None, by: int | None) -> QueueOrder:
        view = QueueView(self.folder)
        waiting = view.waiting(view.jobs(), known)
        numbers = [one.number for one in waiting]
        if job.number not in numbers:
            return known  # it has just started
        priorities = {one.number: one.schedule.priority for one in waiting}
        at = numbers.index(job.number)
        numbers.remove(job.number)
        if before is not None:
            to = numbers.index(before.number) if before.number in numbers else at
        else:
            to = len(numbers) if by is None else max(0, min(len(numbers), at + by))
        most = priorities[numbers[to - 1]] if to > 0 else max(priorities.values())
        least = priorities[numbers[to]] if to < len(numbers) else min(priorities.values())
        fitting = max(least, min(most, priorities[job.number]))
        change_schedule(job.folder, lambda one: replace(one, priority=fitting))
        numbers.insert(to, job.number)
        return replace(known, order=tuple(numbers))

    def _require_waiting(self, job: JobRecord) -> None:
        now = job.state.state
        if now != WAITING:
            raise UserError("jobs", f"a job that is waiting is required, got {job}, which is {now}.")

    # --- who runs it ------------------------------------------------------------------------------------------------------------

    def wait(self, job: JobRecord, seconds: float = float("inf")) -> State:
        """Wait until a job has ended, or for this many seconds; returns its state. Another process must run the queue."""
        limit = time.monotonic() + seconds
        while not job.state.has_ended and time.monotonic() < limit:
            time.sleep(POLL)
        return job.state

    def runner(self) -> LockHolder | None:
        """The process that runs the jobs of this queue."""
        return lock_holder(self.folder)
