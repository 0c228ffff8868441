"""The process of one job: `python -m weft.jobs.queue.worker FOLDER`, started by the runner. It ends with code 0 once the job's end is recorded."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...device_names import CUDA, read_device_name
from ...errors import WeftError
from ...io.files import append_line
from ...locks import one_writer
from ...signals import Terminated, terminable
from ..events import FILE, Event
from .kinds import GROUPS, work_of
from .record import DONE, FAILED, REQUESTS, RUNNING, STOPPED, JobRecord
from .schedule import read_schedule

VISIBLE = "CUDA_VISIBLE_DEVICES"
PROGRESS_SECONDS = 1.0  # between two progress events on disk


def work(folder: Path) -> None:
    """Do the work of the job, or continue it, and record how that ended."""
    record = JobRecord(folder)
    with terminable(), one_writer(folder):  # in this order: whoever sees the lock may send SIGTERM
        claimed = record.claim()
        if claimed is not None:
            record.set(*_outcome(record, claimed.run))


def _outcome(record: JobRecord, run: str | None) -> tuple[str, str]:
    """The last state of the job, and why."""
    try:
        work_of(record.kind)(_placed(record), None if run is None else Path(run), _Events(record))
        return DONE, ""
    except (Terminated, KeyboardInterrupt):
        request = record.request
        return REQUESTS.get(request, STOPPED), request or "terminated"
    except WeftError as error:
        return FAILED, f"[{error.where}] {error.message}"
    except BaseException as error:
        traceback.print_exc()
        return FAILED, f"{type(error).__name__}: {error}"


def _placed(record: JobRecord) -> dict[str, Any]:
    """The settings with the GPU that the runner chose; of a group with its owner, who owns the trainings that it adds, too.

    Of several GPUs, this process and those that it starts see no others.
    """
    slots = read_schedule(record.folder).slots
    owner = {"owner": str(record.submitted().get("owner") or "")} if record.kind in GROUPS else {}
    settings = {**record.settings, **owner}
    if not slots or not read_device_name(slots[0]).is_gpu:
        return settings
    if len(slots) == 1:
        return {**settings, "device": slots[0]}
    os.environ[VISIBLE] = visible_devices(slots, os.environ.get(VISIBLE))
    return {**settings, "device": CUDA}


def visible_devices(slots: Sequence[str], setting: str | None) -> str:
    """The setting of CUDA_VISIBLE_DEVICES that leaves some of the GPUs that it leaves now.

    >>> visible_devices(["cuda:0", "cuda:2"], None), visible_devices(["cuda:0", "cuda:2"], "4,5,6,7")
    ('0,2', '4,6')
    """
    numbers = [int(read_device_name(slot).number) for slot in slots]
    known = setting.split(",") if setting else [str(i) for i in range(max(numbers) + 1)]
    return ",".join(known[i].strip() for i in numbers)


class _Events:
    """Keeps the events of the work in the folder of the job; of progress, one a second."""

    def __init__(self, record: JobRecord) -> None:
        self.record, self.last_progress = record, 0.0

    def __call__(self, event: Event) -> None:
        if event.type == "progress":
            if event.time - self.last_progress < PROGRESS_SECONDS:
                return
            self.last_progress = event.time
        append_line(self.record.folder / FILE, event.line(), "jobs")
        if event.type == "run":
            self.record.set(RUNNING, run=event["folder"])


if __name__ == "__main__":
    work(Path(sys.argv[1]))
    gc.freeze()  # Python ends without a last collection, which takes a fifth of a second: the slot of this job is free sooner
