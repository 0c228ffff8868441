"""The compressions of runs, whoever started them: what their folders say, and what the queue knows of their jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import WeftError
from ...jobs.compression.settings import method_of
from ...jobs.compression.state import STATE, Point, allowed_error, planned_densities, read_state
from ...jobs.events import latest
from ...jobs.queue.kinds import COMPRESS
from ...jobs.queue.record import DONE, FAILED, PAUSED, RUNNING, STOPPED, WAITING
from ...jobs.queue.view import JobView
from ...records import dataclass
from .activity import RECENT
from .changes import stamp
from .feed import Snapshot
from .runs import FINISHED, RunIndex, RunRow


@dataclass(frozen=True)
class CompressionView:
    """A compression at one time. `run` is its name in the index, once it has a folder."""

    status: str  # waiting, running, paused, stopped, failed, finished
    settings: Mapping[str, Any]
    name: str
    run: str | None = None
    state: Mapping[str, Any] | None = None
    job: int | None = None
    why: str = ""
    doing: str = ""
    share: float = 0.0  # of the training that runs

    @property
    def points(self) -> Sequence[Point]:
        """The points that are measured."""
        return self.state["points"] if self.state is not None else ()

    @property
    def original(self) -> Point | None:
        return self.state.get("original") if self.state is not None else None

    @property
    def chosen(self) -> int | None:
        """The number of the point that the compression kept."""
        return self.state.get("chosen") if self.state is not None else None

    @property
    def planned(self) -> int:
        """How many points there will be, as far as that is known."""
        known = len(self.points)
        return known if self.status == FINISHED else max(known, len(planned_densities(self.settings)))

    @property
    def allowed_error(self) -> float:
        return float("inf") if self.state is None or self.original is None else allowed_error(self.state)

    def point(self, number: int | None) -> Point | None:
        """The point of this number; else the one that was kept, the smallest that loses no more than allowed, or the last."""
        found = next((p for p in self.points if p["number"] == number), None)
        found = found or next((p for p in self.points if p["number"] == self.chosen), None)
        good = [p for p in self.points if p["error"] <= self.allowed_error]
        return found or min(good, key=lambda p: p["bytes"], default=self.points[-1] if self.points else None)

    def seconds_left(self, now: float) -> float | None:
        """A forecast from the points that are done."""
        times: list[float] = [p["time"] for p in (self.original or {}, *self.points) if "time" in p]
        if self.status != RUNNING or len(times) < 2:
            return None
        each = (times[-1] - times[0]) / (len(times) - 1)
        return max(0.0, each * (self.planned - len(self.points)) - (now - times[-1]))


class Compressions:
    """Finds the compressions of a run. Files are read again only when they have changed."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self._states: dict[Path, tuple[object, Mapping[str, Any] | None]] = {}
        self._folders: tuple[int, list[RunRow]] = (-1, [])

    def of(self, row: RunRow, snapshot: Snapshot) -> list[CompressionView]:
        """The compressions of a run, the newest first; of a compressed run, its own."""
        jobs = [one for one in snapshot.queue.jobs if one.kind == COMPRESS]
        if self.state(row.folder) is not None:
            return [self._view(row, jobs)]
        made = [one for one in self._rows(snapshot) if self._is_made_of(one, row)]
        return [
            *(view for one in reversed(jobs) if (view := _pending(one, row))),
            *(self._view(one, jobs) for one in made),
        ]

    def state(self, folder: Path) -> Mapping[str, Any] | None:
        """What compression.json says; None if there is none, or while it cannot be read."""
        seen = stamp(folder / STATE)
        if seen == (None,):
            return None
        known = self._states.get(folder)
        if known is None or known[0] != seen:
            known = self._states[folder] = seen, _readable_state(folder)
        return known[1]

    def source(self, row: RunRow) -> RunRow | None:
        """The run that a compressed run was made of, if it is still there."""
        return (
            next((one for one in self.index.rows() if self._is_made_of(row, one)), None)
            if self.state(row.folder)
            else None
        )

    def _is_made_of(self, made: RunRow, row: RunRow) -> bool:
        """Whether a compression was made of a run; if all runs were moved, the one beside it that has the name."""
        state = self.state(made.folder)
        if state is None:
            return False
        source = Path(str(state["source"]))
        return source == row.real_folder or (
            source.name == row.name and made.folder.parent == row.folder.parent and not source.exists()
        )

    def _rows(self, snapshot: Snapshot) -> list[RunRow]:
        """All compressed runs: looked for when a run has changed, and not each second."""
        if self._folders[0] != snapshot.runs_version:
            rows = [row for row in self.index.rows() if (row.folder / STATE).exists()]
            self._folders = snapshot.runs_version, rows
        return self._folders[1]

    def _view(self, row: RunRow, jobs: Sequence[JobView]) -> CompressionView:
        state = self.state(row.folder) or {"settings": {}, "points": [], "source": "", "done": False}
        job = next(
            (one for one in reversed(jobs) if one.state.run and Path(one.state.run).resolve() == row.real_folder), None
        )
        current = self.index.get(row.id) or row
        status, why = _status(current, state, job)
        doing, share = _doing(row.folder) if status == RUNNING else ("", 0.0)
        return CompressionView(
            status, state["settings"], row.name, row.id, state, job.number if job else None, why, doing, share
        )


def _status(row: RunRow, state: Mapping[str, Any], job: JobView | None) -> tuple[str, str]:
    if row.status == RUNNING:
        return RUNNING, ""
    if state["done"]:
        return FINISHED, ""
    if job is not None and job.state.state == STOPPED and job.state.why == PAUSED:
        return PAUSED, ""
    if job is not None and job.state.state in (WAITING, RUNNING):
        return job.state.state, ""
    why = str(state.get("why") or (job.state.why if job is not None and job.state.state == FAILED else ""))
    return (FAILED, why) if why else (STOPPED, "")


def _pending(job: JobView, row: RunRow) -> CompressionView | None:
    """A job that has no folder: it waits, it begins, or it failed before it had one."""
    if (
        job.state.run
        or job.state.state in (DONE, STOPPED)
        or job.settings.get("run") not in (str(row.folder), row.id, row.name)
    ):
        return None
    if job.state.state == FAILED and time.time() - job.state.time > RECENT:
        return None
    name = str(job.settings.get("name") or f"{row.name}-small")
    return CompressionView(job.state.state, job.settings, name, job=job.number, why=job.state.why)


def _doing(folder: Path) -> tuple[str, float]:
    """What a compression does now, and how much of its training is done."""
    activity = latest(folder, "activity")
    if activity is None:
        return "", 0.0
    at = latest(folder / "steps" / str(activity["step"]), "progress")
    if at is None or not at.facts.get("epochs"):
        return str(activity["text"]), 0.0
    share = (at["epoch"] - 1 + at["step"] / max(1, at["steps"])) / at["epochs"]
    return f"{activity['text']}: epoch {at['epoch']} of {at['epochs']}", min(1.0, share)


def _readable_state(folder: Path) -> Mapping[str, Any] | None:
    """What compression.json says; None if it is damaged, or of a newer weft."""
    try:
        found = read_state(folder)
        method_of(found["settings"])
    except WeftError:
        return None
    return found
