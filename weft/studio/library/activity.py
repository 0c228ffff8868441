"""What is going on: jobs of the queue and trainings that were started elsewhere, with their progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ...io.dataset_names import dataset_label
from ...jobs.definitions import network_label
from ...jobs.events import Event, latest
from ...jobs.queue.kinds import TRAIN
from ...jobs.queue.plan import seconds_left
from ...jobs.queue.record import DONE, FAILED, PAUSED, RUNNING, STOPPED, WAITING, State
from ...jobs.queue.remedies import Remedy, remedy
from ...jobs.queue.view import JobView
from ...records import dataclass
from .runs import RunRow
from .schedule import QueueSnapshot, needs_text

RECENT = 24 * 3600.0  # seconds for which a failed job stays in sight
HELD = "held"
ORDER = {RUNNING: 0, WAITING: 1, HELD: 2, PAUSED: 3, FAILED: 4}


@dataclass(frozen=True)
class TrainingProgress:
    """How far a training is, or another job: `step` of `steps` with no epochs."""

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
        return min(1.0, max(0.0, (self.epoch - 1 + within) / self.epochs if self.epochs else within))


@dataclass(frozen=True)
class Activity:
    """One job or one training: what it does, how far it is, and why it waits or failed."""

    name: str
    state: str  # waiting, held, running, paused, failed
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
    kind: str = TRAIN
    owner: str = ""
    needs: str = ""
    priority: str = "normal"
    starts: float | None = None  # forecast, of a job that waits
    since: float = 0.0  # when it began to be in this state
    held_by: str = ""
    memory: int | None = None  # forecast and measured bytes of GPU memory
    memory_used: int | None = None
    remedy: Remedy | None = None


@dataclass(frozen=True)
class EndedJob:
    """A job that is done, stopped or failed."""

    number: int
    state: State
    settings: Mapping[str, Any]
    name: str = ""
    kind: str = TRAIN
    run: str | None = None  # its name in the index, if it is there
    remedy: Remedy | None = None


def ended_jobs(jobs: Sequence[JobView], most: int, runs: Iterable[RunRow] = ()) -> list[EndedJob]:
    """The jobs that have ended, the last first."""
    ids = {row.real_folder: row.id for row in runs}
    ended = (one for one in reversed(jobs) if one.state.has_ended)
    return [
        EndedJob(
            one.number, one.state, one.settings, one.title, one.kind, ids.get(_folder(one)), _remedy(one)
        )
        for one in islice(ended, most)
    ]  # fmt: skip


def activities(queue: QueueSnapshot, runs: Iterable[RunRow]) -> list[Activity]:
    """Running ones first, then waiting and paused ones in the order of the queue, then what failed lately."""
    by_folder = {row.real_folder: row for row in runs}
    current = [one for one in queue.jobs if not _is_over(one.state)]
    of_queue = {_folder(one) for one in current if one.state.run}
    found = [_of_job(one, queue, by_folder.get(_folder(one)) if one.state.run else None) for one in current]
    found += [_of_run(row) for folder, row in by_folder.items() if row.status == RUNNING and folder not in of_queue]
    place = {one.number: i for i, one in enumerate(queue.waiting)}
    return sorted(
        found, key=lambda one: (ORDER[one.state], place.get(one.job or 0, len(place)), one.job if one.job is not None else 1 << 30)
    )  # fmt: skip


def _folder(one: JobView) -> Path:
    return Path(one.state.run or "/nowhere").resolve()


def _is_over(state: State) -> bool:
    if state.state == FAILED:
        return time.time() - state.time > RECENT
    return state.state == DONE or (state.state == STOPPED and state.why != PAUSED)


def _remedy(one: JobView) -> Remedy | None:
    return remedy(one.kind, one.state.why, one.settings) if one.state.state == FAILED else None


def _of_job(one: JobView, queue: QueueSnapshot, row: RunRow | None) -> Activity:
    settings, state, number = one.settings, one.state, one.number
    runs = state.state == RUNNING
    shown = PAUSED if state.state == STOPPED else HELD if state.state == WAITING and one.schedule.held else state.state
    last = latest(one.record.folder, "activity", "progress") if runs else None
    doing = _doing(last) if last is not None else ""
    why = queue.plan.reasons.get(number, "") if state.state == WAITING else state.why
    device = (
        queue.slot_titles(one.schedule.slots) if runs and one.schedule.slots else str(settings.get("device") or "cpu")
    )
    return Activity(
        one.title, shown, network_label(str(settings.get("model") or "")) if one.kind == TRAIN else one.kind, dataset_label(str(settings.get("data") or "")),
        device, number, None if row is None else row.id, why, doing, _progress(one.record.folder, row, one) if runs else None, *_measured(row),
        one.kind, one.owner, needs_text(one), one.schedule.priority_name, queue.plan.starts.get(number),
        one.schedule.held_at if shown == HELD else state.time, one.schedule.held_by, one.needs.memory, one.schedule.memory, _remedy(one),
    )  # fmt: skip


def _doing(last: Event) -> str:
    """What a job does: its last activity, or how far it is if that is no training."""
    if last.type == "activity":
        return str(last["text"])
    facts = last.facts
    return "" if "epoch" in facts else f"{facts.get('what', '')}: {facts.get('done', 0):,} of {facts.get('total', 0):,}"


def _of_run(row: RunRow) -> Activity:
    return Activity(
        row.name, RUNNING, row.model, row.data, str(row.settings.get("device") or "cpu"), None, row.id, "", "",
        _progress(row.folder, row), *_measured(row),
    )  # fmt: skip


def _measured(row: RunRow | None) -> tuple[str | None, float | None, tuple[float, ...]]:
    if row is None or row.best_metric is None:
        return None, None, ()
    return row.best_metric, row.last(row.best_metric), tuple(row.trend())


def _progress(folder: Path, row: RunRow | None, job: JobView | None = None) -> TrainingProgress | None:
    event = latest(folder, "progress")
    if event is None or ("epoch" not in event.facts and job is None):
        return None
    facts = event.facts
    epoch, epochs = (int(facts.get(name) or 0) for name in ("epoch", "epochs"))
    step = int(facts.get("step") or facts.get("done") or 0)  # in run folders, and in the folders of jobs
    steps = int(facts.get("steps") or facts.get("total") or 0)
    per_epoch = row.seconds / row.epochs if row is not None and row.seconds and row.epochs else None
    left = None
    if per_epoch is not None and steps and epochs:
        left = max(0.0, per_epoch * (epochs - epoch + 1 - step / steps) - max(0.0, time.time() - event.time))
    elif job is not None:
        left = seconds_left(job, time.time())
    return TrainingProgress(epoch, epochs, step, steps, facts.get("examples_per_second"), left)
