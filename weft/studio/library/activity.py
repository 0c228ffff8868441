"""What is going on: jobs of the queue and trainings that were started elsewhere, with their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ...jobs.definitions import network_label
from ...jobs.events import latest
from ...jobs.queue import JobQueue
from ...jobs.record import DONE, FAILED, PAUSED, RUNNING, STOPPED, JobRecord, State
from .runs import RunRow

RECENT = 24 * 3600.0  # seconds for which a failed job stays in sight


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training is."""

    epoch: int
    epochs: int
    step: int
    steps: int
    examples_per_second: float | None
    seconds_left: float | None

    @property
    def share(self) -> float:
        """From 0 to 1."""
        within = self.step / self.steps if self.steps else 0.0
        return min(1.0, max(0.0, (self.epoch - 1 + within) / self.epochs)) if self.epochs else 0.0


@dataclass(frozen=True)
class Activity:
    """One job or one training: what it does, how far it is, and why it waits or failed."""

    name: str
    state: str  # waiting, running, paused, failed
    model: str
    data: str
    device: str
    job: int | None = None  # its number in the queue
    run: str | None = None
    why: str = ""
    doing: str = ""  # what it does before the first step: compiling, reading data
    progress: TrainingProgress | None = None
    metric: str | None = None
    value: float | None = None
    trend: tuple[float, ...] = ()


@dataclass(frozen=True)
class EndedJob:
    """A job that is done, stopped or failed."""

    number: int
    state: State
    settings: Mapping[str, Any]


def ended_jobs(queue: JobQueue, most: int) -> list[EndedJob]:
    """The jobs that have ended, the last first."""
    ended = ((job, state) for job in reversed(queue.jobs()) if (state := job.state).has_ended)
    return [EndedJob(job.number, state, job.settings) for job, state in islice(ended, most)]


def activities(queue: JobQueue, runs: Iterable[RunRow]) -> list[Activity]:
    """Running ones first, then waiting and paused ones in the order of the queue, then what failed lately."""
    by_folder = {row.folder.resolve(): row for row in runs}
    jobs = [(job, job.state) for job in queue.jobs()]
    of_queue = {Path(state.run).resolve() for _, state in jobs if state.run and not _is_over(state)}
    found = [
        _of_job(job, state, by_folder.get(Path(state.run).resolve()) if state.run else None)
        for job, state in jobs
        if not _is_over(state)
    ]
    found += [_of_run(row) for folder, row in by_folder.items() if row.status == RUNNING and folder not in of_queue]
    order = {RUNNING: 0, "waiting": 1, PAUSED: 2, FAILED: 3}
    return sorted(found, key=lambda one: (order[one.state], one.job if one.job is not None else 1 << 30))


def _is_over(state: State) -> bool:
    if state.state == FAILED:
        return time.time() - state.time > RECENT
    return state.state == DONE or (state.state == STOPPED and state.why != PAUSED)


def _of_job(job: JobRecord, state: State, row: RunRow | None) -> Activity:
    settings = job.settings
    shown = PAUSED if state.state == STOPPED else state.state
    name = row.name if row is not None else str(settings.get("name") or f"Job {job.number}")
    last = latest(job.folder, "activity", "progress") if state.state == RUNNING else None
    doing = str(last["text"]) if last is not None and last.type == "activity" else ""
    return Activity(
        name, shown, network_label(str(settings.get("model") or "")), Path(str(settings.get("data") or "")).name,
        str(settings.get("device") or "cpu"), job.number, None if row is None else row.id, state.why, doing,
        _progress(job.folder, row) if state.state == RUNNING else None, *_measured(row),
    )  # fmt: skip


def _of_run(row: RunRow) -> Activity:
    return Activity(
        row.name, RUNNING, row.model, row.data, str(row.settings.get("device") or "cpu"), None, row.id, "", "",
        _progress(row.folder, row), *_measured(row),
    )  # fmt: skip


def _measured(row: RunRow | None) -> tuple[str | None, float | None, tuple[float, ...]]:
    if row is None or row.best_metric is None:
        return None, None, ()
    return row.best_metric, row.last(row.best_metric), tuple(row.trend())


def _progress(folder: Path, row: RunRow | None) -> TrainingProgress | None:
    event = latest(folder, "progress")
    if event is None or "epoch" not in event.facts:
        return None
    facts = event.facts
    epoch, epochs, step, steps = (int(facts.get(name) or 0) for name in ("epoch", "epochs", "step", "steps"))
    per_epoch = row.seconds / row.epochs if row is not None and row.seconds and row.epochs else None
    left = None
    if per_epoch is not None and steps:
        left = max(0.0, per_epoch * (epochs - epoch + 1 - step / steps) - max(0.0, time.time() - event.time))
    return TrainingProgress(epoch, epochs, step, steps, facts.get("examples_per_second"), left)
