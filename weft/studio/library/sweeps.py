"""The sweeps of a folder of runs, whoever started them: what their folders say, and what the queue knows of their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import WeftError
from ...io.dataset_names import dataset_label
from ...jobs.queue.kinds import SWEEP, TRAIN
from ...jobs.queue.record import DONE, FAILED, PAUSED, RUNNING, STOPPED, WAITING
from ...jobs.queue.view import JobView
from ...jobs.sweeps.record import FOLDER, SweepRecord, SweepTrial, read_sweep
from ...jobs.sweeps.summary import SweepSummary, sweep_summary
from ...records import dataclass
from .activity import RECENT
from .changes import stamp
from .runs import FINISHED

FILES = ("sweep.json", "trials.json", "importance.json")


@dataclass(frozen=True)
class SweepSnapshot:
    """A sweep at one time. One that has not begun yet has a job and no record."""

    name: str
    status: str  # waiting, running, paused, stopped, failed, finished
    record: SweepRecord | None = None
    trials: tuple[SweepTrial, ...] = ()
    importance: Mapping[str, float] = field(default_factory=dict)
    job: int | None = None
    why: str = ""
    created: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    durations: tuple[float, ...] = ()  # seconds from the start of a trial to its end, of those that the queue has run

    @cached_property
    def summary(self) -> SweepSummary | None:
        return None if self.record is None else sweep_summary(self.record, self.trials, self.durations)

    @property
    def ended(self) -> int:
        return sum(one.has_ended for one in self.trials)

    @property
    def planned(self) -> int:
        """How many trials there will be; 0 if nobody knows yet."""
        return int(self.settings.get("trials") or 0) if self.record is None else self.record.plan.trials

    @property
    def data(self) -> str:
        return dataset_label(str(self.settings.get("data") or ""))


class SweepIndex:
    """Finds the sweeps below a folder of runs. Files are read again only when they have changed."""

    def __init__(self, runs: Path) -> None:
        self.folder = runs / FOLDER
        self._known: dict[Path, tuple[object, _Files | None]] = {}

    def refresh(self, jobs: Sequence[JobView]) -> tuple[SweepSnapshot, ...]:
        """All sweeps, the newest first."""
        last = {str(one.settings.get("name")): one for one in jobs if one.kind == SWEEP}
        spent = {
            one.number: one.state.time - one.schedule.started
            for one in jobs
            if one.kind == TRAIN and one.state.has_ended and one.schedule.started is not None
        }
        folders = [path.parent for path in self.folder.glob("*/sweep.json")]
        found = [view for one in folders if (view := self._view(one, last.pop(one.name, None), spent)) is not None]
        found += [view for name, job in last.items() if (view := _pending(name, job)) is not None]
        return tuple(sorted(found, key=lambda one: -one.created))

    def _view(self, folder: Path, job: JobView | None, spent: Mapping[int, float]) -> SweepSnapshot | None:
        seen = stamp(*(folder / name for name in FILES))
        known = self._known.get(folder)
        if known is None or known[0] != seen:
            known = self._known[folder] = seen, _read(folder)
        if known[1] is None:
            return None
        record, trials, importance = known[1]
        status, why = _status(record, trials, job)
        number = job.number if job is not None else None
        durations = tuple(spent[one.job] for one in trials if one.job is not None and one.job in spent)
        return SweepSnapshot(
            record.name, status, record, trials, importance, number, why, record.created, record.plan.texts, durations
        )


_Files = tuple[SweepRecord, tuple[SweepTrial, ...], Mapping[str, float]]


def _read(folder: Path) -> _Files | None:
    """What the files say; None if they are damaged, or of a newer weft."""
    try:
        record = read_sweep(folder)
        return record, tuple(record.trials()), _importance(folder)
    except WeftError:
        return None


def _importance(folder: Path) -> Mapping[str, float]:
    try:
        found = json.loads((folder / "importance.json").read_text("utf-8"))["importance"]
        return {str(name): float(share) for name, share in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # it is written after some trials


def _status(record: SweepRecord, trials: Sequence[SweepTrial], job: JobView | None) -> tuple[str, str]:
    if record.is_searched:
        return RUNNING, ""
    if job is not None and job.state.state in (WAITING, RUNNING):
        return job.state.state, ""
    if sum(one.has_ended for one in trials) >= record.plan.trials:
        return FINISHED, ""
    if job is not None and job.state.state == FAILED:
        return FAILED, job.state.why
    if job is not None and job.state.state == STOPPED and job.state.why == PAUSED:
        return PAUSED, ""
    return STOPPED, ""


def _pending(name: str, job: JobView) -> SweepSnapshot | None:
    """A job that has no folder: it waits, it prepares its data, or it failed before it had one."""
    now = job.state
    if now.state == DONE or (now.state == STOPPED and now.why != PAUSED):
        return None
    if now.state == FAILED and time.time() - now.time > RECENT:
        return None
    status = PAUSED if now.state == STOPPED else now.state
    return SweepSnapshot(name, status, job=job.number, why=now.why if status == FAILED else "", created=now.time, settings=job.settings)  # fmt: skip
