"""Trials as jobs: each trial of a sweep is a training in the queue, and this process runs the queue unless another one does. On a cluster the sweep has a queue of its own.

A search needs no more of where its trials run than `TrialJobs` says: starting a trial under a number (again after a restart, which finds the one
that was started before), how it is, and stopping it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

from ...compiler.host import usable_cores
from ...errors import UserError
from ...knobs import knobs
from ...records import dataclass
from ..annotations import annotate
from ..cluster.runner import ClusterQueue, ClusterRunner
from ..events import events_from
from ..queue.job_queue import JobQueue
from ..queue.kinds import TRAIN
from ..queue.record import CANCELLED, FAILED, LOST, PAUSED, PRUNED, RUNNING, STOPPED, WAITING, JobRecord
from ..queue.runner import Runner
from ..queue.submission import submit
from .record import SweepRecord

QUEUE = ".jobs"  # in the folder of a sweep on a cluster


@dataclass(frozen=True)
class TrialStatus:
    """How a trial is: a state of jobs, why, its run, and the rows of its epochs so far."""

    state: str
    why: str = ""
    run: str | None = None
    job: int | None = None
    rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # by epoch

    @property
    def is_active(self) -> bool:
        return self.state in (WAITING, RUNNING)

    @property
    def is_interrupted(self) -> bool:
        """Whether it was paused or terminated: it has not ended, and continues when it is resumed."""
        return self.state == STOPPED and self.why not in (PRUNED, CANCELLED)

    @property
    def summary(self) -> dict[str, Any]:
        """What its run has reached."""
        try:
            found = json.loads((Path(self.run or "") / "summary.json").read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


class TrialJobs(Protocol):
    """Where trials run."""

    def start(self, number: int, values: Mapping[str, Any]) -> None:
        """Start a trial, or find the one that was started under this number. UserError says why its settings cannot be used."""

    def find(self, number: int) -> TrialStatus | None:
        """How a trial is that an earlier search has started; None if there is none under this number."""

    def status(self, number: int) -> TrialStatus: ...

    def prune(self, number: int) -> None:
        """Ask a trial to stop after its step."""

    def step(self) -> None:
        """Whatever keeps trials running; called many times a second."""


class TrialRunner(Protocol):
    """What runs the jobs of the queue."""

    def serving(self) -> AbstractContextManager[None]: ...

    def step(self) -> bool: ...

    def collect(self) -> None: ...


class QueuedTrials:
    """Trials as jobs of the queue of a folder of runs, those of `owner`. With `runner`, this process runs the queue while no other one does.

    Those of a cluster are in a queue in the folder of the sweep, which this process always runs.
    """

    def __init__(self, record: SweepRecord, runner: bool = True, owner: str = "") -> None:
        self.record, self.owner, self.is_runner = record, owner, runner or record.plan.cluster is not None
        on_cluster = record.plan.cluster is not None
        self.queue = ClusterQueue(record.runs, record.folder / QUEUE) if on_cluster else JobQueue(record.runs)
        self._jobs: dict[int, JobRecord] = {}
        self._seen: dict[int, tuple[int, dict[int, Mapping[str, Any]]]] = {}  # place in the events, and rows
        self._known = _jobs_by_name(self.queue, record)
        self._runner: TrialRunner | None = None
        self._stack = ExitStack()

    @contextmanager
    def serving(self) -> Iterator[QueuedTrials]:
        """Inside, trials run. When it is left by an error or a signal, they stop with a checkpoint until the search continues."""
        with self._stack:
            try:
                yield self
            except BaseException:
                if self._runner is None:  # of another process, which would start them again
                    self._pause()
                raise
            if self._runner is not None:
                self._runner.collect()

    def _pause(self) -> None:
        for job in self._jobs.values():
            if not job.state.has_ended:
                with suppress(UserError):  # it has just ended
                    job.stop(PAUSED)

    def step(self) -> None:
        if self._runner is None and self.is_runner and self.queue.runner() is None:
            made = self._new_runner()
            self._stack.enter_context(made.serving())
            self._runner = made
        if self._runner is not None:
            self._runner.step()

    def _new_runner(self) -> TrialRunner:
        jobs, cluster = self.record.plan.jobs, self.record.plan.cluster
        if cluster is not None:
            return ClusterRunner(self.queue, cluster, at_once=jobs)
        return Runner(self.queue, at_once=jobs, threads=knobs.threads or max(1, usable_cores() // jobs))

    def start(self, number: int, values: Mapping[str, Any]) -> None:
        name = trial_name(self.record, number)
        job = self._known.get(name)
        if job is None:
            own = {"name": name, "group": self.record.name, "exist_ok": True}  # nobody else's run has its name
            job = submit(self.queue, {**self.record.plan.fixed, **values, **own}, self.owner, is_part=True)
        elif _goes_on(job):
            self.queue.resume(job)
        self._jobs[number], self._seen[number] = job, (0, {})

    def find(self, number: int) -> TrialStatus | None:
        job = self._known.get(trial_name(self.record, number))
        if job is None:
            return None
        self._jobs[number], self._seen[number] = job, (0, {})
        return self.status(number)

    def status(self, number: int) -> TrialStatus:
        job, (place, rows) = self._jobs[number], self._seen[number]
        now = job.state  # before the events: all of them are there when it has ended
        events, place = events_from(job.folder, place)
        rows = rows | {int(one["epoch"]): one.facts for one in events if one.type == "epoch"}
        self._seen[number] = place, rows
        if now.state == FAILED and now.why == LOST:  # the runner puts it back into the queue
            return TrialStatus(WAITING, now.why, now.run, job.number, rows)
        return TrialStatus(now.state, now.why, now.run, job.number, rows)

    def prune(self, number: int) -> None:
        try:
            self._jobs[number].stop(PRUNED)
        except UserError:
            return  # it has just ended
        run = self._jobs[number].state.run
        if run is not None and Path(run).is_dir():
            annotate(run, add_tags=[PRUNED])


def trial_name(record: SweepRecord, number: int) -> str:
    """The name of the run of a trial."""
    return f"{record.name}-{number}"


def _jobs_by_name(queue: JobQueue, record: SweepRecord) -> dict[str, JobRecord]:
    """The trainings of the queue since the sweep was made, which may have had the name of an older one."""
    jobs = [one for one in queue.jobs() if (one.folder / "job.json").stat().st_mtime >= record.created - 1]
    return {str(one.readable_settings.get("name")): one for one in jobs if one.kind == TRAIN}


def _goes_on(job: JobRecord) -> bool:
    """Whether a job that was interrupted has to be put into the queue again: paused, terminated, or killed too often for the runner."""
    now = job.state
    killed = now.state == FAILED and now.why != LOST and now.why.startswith(("its process ended with signal", LOST))
    return killed or (now.state == STOPPED and now.why not in (PRUNED, CANCELLED))
