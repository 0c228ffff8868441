"""What jobs that use the network of a run have in common."""

from __future__ import annotations

from ...jobs.queue.job_queue import JobQueue
from .runs import RunRow


def device_for(queue: JobQueue, row: RunRow) -> str:
    """The device of the run, or the CPU if that is on another machine: inference needs no more."""
    device = str(row.settings.get("device") or "cpu")
    gpus = queue.gpus() if device.startswith("cuda") else []
    return device if device in ("cuda", *gpus) and gpus else "cpu"
