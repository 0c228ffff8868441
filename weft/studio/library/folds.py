"""The cross-validations of a folder of runs, whoever started them: the runs of their folds, mean and deviation of each metric, and their jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from ...errors import WeftError
from ...io.dataset_names import dataset_label
from ...jobs.definitions import network_label
from ...jobs.folds.cross_validation import FOLDER, STATE, read_folds
from ...jobs.folds.queue import fold_name
from ...jobs.folds.results import TABLE
from ...jobs.queue.kinds import FOLDS
from ...jobs.queue.record import DONE, FAILED, PAUSED, RUNNING, STOPPED
from ...jobs.queue.view import JobView
from ...locks import lock_holder
from ...records import dataclass
from .activity import RECENT
from .changes import stamp
from .runs import FINISHED, RunRow


@dataclass(frozen=True)
class FoldsSnapshot:
    """A cross-validation at one time. One that has not begun yet has a job and no examples."""

    name: str
    status: str  # waiting, running, paused, stopped, failed, finished
    folder: Path
    folds: int
    model: str
    data: str
    examples: int
    runs: tuple[str, ...]  # names of the runs of the folds in the index
    metrics: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # values, mean and std, when all folds are done
    created: float = 0.0
    job: int | None = None
    why: str = ""  # it failed

    @property
    def table(self) -> Path | None:
        """Predictions for all training examples, when all folds are done."""
        path = self.folder / TABLE
        return path if path.is_file() else None

    def done(self, rows: Sequence[RunRow | None]) -> int:
        """How many folds have ended."""
        return sum(row is not None and row.status == FINISHED for row in rows)


class FoldsIndex:
    """Finds the cross-validations below a folder of runs. Files are read again only when they have changed."""

    def __init__(self, runs: Path) -> None:
        self.folder = runs / FOLDER
        self._known: dict[Path, tuple[object, dict[str, Any] | None]] = {}

    def refresh(self, jobs: Sequence[JobView] = ()) -> tuple[FoldsSnapshot, ...]:
        """All cross-validations, the newest first."""
        last = {str(one.settings.get("name")): one for one in jobs if one.kind == FOLDS}
        folders = [path.parent for path in self.folder.glob(f"*/{STATE}")]
        found = [self._view(one, last.pop(one.name, None)) for one in folders]
        found += [self._pending(name, job) for name, job in last.items()]
        return tuple(sorted((one for one in found if one is not None), key=lambda one: -one.created))

    def _view(self, folder: Path, job: JobView | None) -> FoldsSnapshot | None:
        seen = stamp(folder / STATE)
        known = self._known.get(folder)
        if known is None or known[0] != seen:
            known = self._known[folder] = seen, _read(folder)
        state = known[1]
        if state is None:
            return None
        is_held = not state["done"] and lock_holder(folder) is not None
        status = FINISHED if state["done"] else RUNNING if is_held else STOPPED if job is None else _status(job)
        runs = tuple(f"{state['task']}/{fold_name(state['name'], k)}" for k in range(1, state["folds"] + 1))
        data = dataset_label(str(state["settings"].get("data") or ""))
        created = (seen[0] or (0, 0))[0] / 1e9
        return FoldsSnapshot(
            folder.name, status, folder, state["folds"], str(state.get("model") or ""), data, int(state.get("examples") or 0), runs,
            dict(sorted((state.get("metrics") or {}).items(), key=lambda one: "loss" in one[0])), created,
            None if job is None else job.number, job.state.why if job is not None and status == FAILED else "",
        )  # fmt: skip

    def _pending(self, name: str, job: JobView) -> FoldsSnapshot | None:
        """A job that has no folder: it waits, it prepares its data, or it failed before it had one."""
        now, told = job.state, job.settings
        if now.state == DONE or (now.state == STOPPED and now.why != PAUSED):
            return None
        if now.state == FAILED and time.time() - now.time > RECENT:
            return None
        status = _status(job)
        data, model = dataset_label(str(told.get("data") or "")), network_label(str(told.get("model") or ""))
        return FoldsSnapshot(
            name, status, self.folder / name, int(told.get("folds") or 0), model, data, 0, (), {}, now.time, job.number,
            now.why if status == FAILED else "",
        )  # fmt: skip


def _status(job: JobView) -> str:
    """That of a cross-validation which nobody trains, by its last job."""
    now = job.state
    if now.state == STOPPED:
        return PAUSED if now.why == PAUSED else STOPPED
    return STOPPED if now.state == DONE else now.state


def _read(folder: Path) -> dict[str, Any] | None:
    """What folds.json says; None if it is damaged, or of a newer weft."""
    try:
        return read_folds(folder)
    except WeftError:
        return None
