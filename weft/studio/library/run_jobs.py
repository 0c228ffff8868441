"""What jobs that use the network of a run have in common."""

from __future__ import annotations

from ...device_names import CPU, CUDA, read_device_name
from ...jobs.queue.job_queue import JobQueue
from .runs import RunRow


def device_for(queue: JobQueue, row: RunRow) -> str:
    """The device of the run, or the CPU if that is on another machine: inference needs no more."""
    setting = str(row.settings.get("device") or CPU)
    gpus = queue.gpus() if read_device_name(setting).is_gpu else []
    return setting if gpus and setting in (CUDA, *gpus) else CPU
