"""The embedding maps of runs: read from their folders and kept, and the jobs that make them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...jobs.embedding import EXAMPLES, EmbeddingMap, read_embedding
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import EMBEDDING
from ...jobs.queue.record import JobRecord
from ...jobs.run_weights import map_file, weights_path
from .run_jobs import device_for
from .run_network import why_without_layers
from .runs import RunRow

KEPT = 4


class EmbeddingMaps:
    """The maps that were looked at last, by run folder and checkpoint."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, tuple[int, EmbeddingMap]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path, checkpoint: str = "best") -> EmbeddingMap | None:
        """The map of a run by the weights of a checkpoint; None if there is none."""
        path = folder / map_file(checkpoint)
        try:
            stamp = path.stat().st_mtime_ns
        except OSError:
            return None
        with self._lock:
            known = self._known.get(path)
            if known is None or known[0] != stamp:
                made = read_embedding(folder, checkpoint)
                if made is None:
                    return None
                known = stamp, made
            self._known[path] = known
            self._known.move_to_end(path)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return known[1]

    def current(self, folder: Path, checkpoint: str) -> EmbeddingMap | None:
        """The map if it was made by the weights that the checkpoint has now."""
        found = self.get(folder, checkpoint)
        return found if found is not None and found.is_current(folder) else None


def embedding_job(queue: JobQueue, row: RunRow, checkpoint: str = "best") -> JobRecord | None:
    """The job that waits, runs, or has failed to make the map of a run; None if the last one is done."""
    for job in reversed(queue.jobs()):
        settings = job.readable_settings
        if job.kind == EMBEDDING and (settings.get("run"), settings.get("checkpoint")) == (str(row.folder), checkpoint):
            return None if job.state.state == "done" else job
    return None


def embedding_title(row: RunRow, checkpoint: str = "best") -> str:
    """What its job is called."""
    return f"Embedding of {row.name}" + ("" if checkpoint == "best" else f", {checkpoint}")


def submit_embedding(queue: JobQueue, row: RunRow, given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Add the job that makes the map of a run, unless one waits or runs."""
    if why := why_without_layers(row.folder):
        raise UserError("studio", why)
    checkpoint = given.get("checkpoint", "best")
    weights_path("studio", row.folder, checkpoint)
    known = embedding_job(queue, row, checkpoint)
    if known is not None and not known.state.has_ended:
        return known
    settings = {
        "name": embedding_title(row, checkpoint), "run": str(row.folder), "model": row.model, "data": row.data,
        "checkpoint": checkpoint, "examples": given.get("examples", EXAMPLES),
        "device": device_for(queue, row),
    }  # fmt: skip
    return queue.add(settings, EMBEDDING, owner=owner)
