"""The embedding maps of runs: read from their folders and kept, and the jobs that make them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...jobs.embedding import EXAMPLES, FILE, EmbeddingMap, read_embedding
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.kinds import EMBEDDING
from ...jobs.queue.record import JobRecord
from .run_jobs import device_for
from .run_network import why_without_layers
from .runs import RunRow

KEPT = 4


class EmbeddingMaps:
    """The maps that were looked at last, by run folder."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, tuple[int, EmbeddingMap]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path, checkpoint: str | None = None) -> EmbeddingMap | None:
        """The map of a run; None if there is none, or none of this checkpoint."""
        try:
            stamp = (folder / FILE).stat().st_mtime_ns
        except OSError:
            return None
        with self._lock:
            known = self._known.get(folder)
            if known is None or known[0] != stamp:
                made = read_embedding(folder)
                if made is None:
                    return None
                known = stamp, made
            self._known[folder] = known
            self._known.move_to_end(folder)
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return known[1] if checkpoint in (None, known[1].facts["checkpoint"]) else None


def embedding_job(queue: JobQueue, row: RunRow) -> JobRecord | None:
    """The job that waits, runs, or has failed to make the map of a run; None if the last one is done."""
    for job in reversed(queue.jobs()):
        if job.kind == EMBEDDING and job.readable_settings.get("run") == str(row.folder):
            return None if job.state.state == "done" else job
    return None


def submit_embedding(queue: JobQueue, row: RunRow, given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Add the job that makes the map of a run, unless one waits or runs."""
    if why := why_without_layers(row.folder):
        raise UserError("studio", why)
    known = embedding_job(queue, row)
    if known is not None and not known.state.has_ended:
        return known
    settings = {
        "name": f"Embedding of {row.name}", "run": str(row.folder), "model": row.model, "data": row.data,
        "checkpoint": given.get("checkpoint", "best"), "examples": given.get("examples", EXAMPLES),
        "device": device_for(queue, row),
    }  # fmt: skip
    return queue.add(settings, EMBEDDING, owner=owner)
