"""Batches of predictions: what was asked, how far each is, and what came out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...errors import RunError, UserError
from ...jobs.events import latest
from ...jobs.prediction.predictions import FOLDER
from ...jobs.prediction.results import RESULTS, SUBMISSION, TABLE, StoredPrediction, read_predictions
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.record import DONE, STOPPED, State
from ...records import dataclass

SHOWN = ("all", "wrong", "failed")
ORDERS = ("file", "confident", "unsure")


@dataclass(frozen=True)
class PredictionBatch:
    """One batch of predictions, with the state of its job."""

    number: int
    folder: Path
    network: str  # its id
    network_name: str
    source: str
    created: float
    job: int | None
    state: State
    done: int
    results: Mapping[str, Any]

    @property
    def images(self) -> int:
        return int(self.results.get("images", 0))

    @property
    def is_done(self) -> bool:
        return bool(self.results.get("done"))

    @property
    def status(self) -> str:
        """As chips show it."""
        if self.is_done:
            return "finished"
        return str(self.state.why if self.state.state == STOPPED and self.state.why == "paused" else self.state.state)

    @property
    def share(self) -> float:
        return 1.0 if self.is_done else self.done / self.images if self.images else 0.0

    @property
    def mistakes(self) -> int:
        return int(self.results.get("labelled", 0) - self.results.get("right", 0))


class Batches:
    """The batches below a folder of runs."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue, self.root = queue, queue.root / FOLDER

    def recent(self, most: int = 20) -> list[PredictionBatch]:
        """The last ones, the newest first."""
        numbers = sorted((int(p.name) for p in self.root.glob("*") if p.name.isdigit()), reverse=True)
        found = (self._read(number) for number in numbers[: 2 * most])
        return [batch for batch in found if batch is not None][:most]

    def get(self, number: int) -> PredictionBatch | None:
        return self._read(number)

    def delete(self, batch: PredictionBatch) -> None:
        """Remove the predictions and, of an upload, its images."""
        if batch.state.state in ("running", "waiting") and not batch.is_done:
            raise UserError(
                "studio",
                f"predictions that have ended are required, got some that are {batch.state.state}. Stop them first.",
            )
        shutil.rmtree(batch.folder)

    def _read(self, number: int) -> PredictionBatch | None:
        folder = self.root / str(number)
        asked, results = _json(folder / SUBMISSION), _json(folder / RESULTS)
        if not asked:
            return None
        state = self._state(asked.get("job"), bool(results.get("done")))
        done = int(results.get("images", 0)) if results.get("done") else self._progress(asked.get("job"))
        return PredictionBatch(
            number, folder, str(asked.get("network_id", "")), str(asked.get("network_name", "")), str(asked.get("source_name", "")),
            float(asked.get("created", 0.0)), asked.get("job"), state, done, results,
        )  # fmt: skip

    def _state(self, job: int | None, done: bool) -> State:
        if done or job is None:
            return State(DONE)
        try:
            return self.queue.job(job).state
        except (UserError, RunError):  # the job was removed from the queue
            return State(STOPPED, "its job is gone")

    def _progress(self, job: int | None) -> int:
        event = latest(self.queue.folder / str(job), "progress") if job is not None else None
        return int(event.facts.get("done", 0)) if event is not None else 0


def rows_of(batch: PredictionBatch) -> Sequence[StoredPrediction]:
    """All predictions of a batch so far; read again when the table has grown."""
    try:
        status = os.stat(batch.folder / TABLE)
    except OSError:
        return ()
    return _rows(batch.folder, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=4)
def _rows(folder: Path, time: int, size: int) -> tuple[StoredPrediction, ...]:
    return tuple(read_predictions(folder))


def selected(
    rows: Sequence[StoredPrediction], show: str = "all", order: str = "file", predicted: str = "", true: str = ""
) -> list[StoredPrediction]:
    """The predictions that are asked for: all, the wrong ones or the failed ones; of one class; in an order."""
    found = [one for one in rows if _fits(one, show) and predicted in ("", one.predicted) and true in ("", one.label)]
    if order == "file":
        return found
    return sorted(found, key=lambda one: one.confidence, reverse=order == "confident")


def _fits(one: StoredPrediction, show: str) -> bool:
    return {"wrong": one.is_right is False, "failed": bool(one.error)}.get(show, True)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
