"""What each person uses: jobs of the queue that they started, and the disk space of the runs that these have made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...errors import UserError
from ...jobs.queue.record import RUNNING, WAITING, JobRecord
from ...records import dataclass
from ..store.accounts import Quota


@dataclass
class OwnUse:
    """Jobs and runs of one person, and the bytes of the runs."""

    running: int = 0
    waiting: int = 0
    runs: int = 0
    bytes: int = 0


def uses_by_owner(jobs: Sequence[JobRecord]) -> Mapping[str, OwnUse]:
    """The use of every owner of a job. Runs that were started by hand belong to nobody."""
    found: dict[str, OwnUse] = {}
    counted: set[str] = set()
    for job in jobs:
        owner = _owner(job)
        if not owner:
            continue
        use, state = found.setdefault(owner, OwnUse()), job.state
        use.running += state.state == RUNNING
        use.waiting += state.state == WAITING
        if state.run and state.run not in counted and Path(state.run).is_dir():
            counted.add(state.run)
            use.runs += 1
            use.bytes += _size(state.run)
    return found


def check_disk_quota(name: str, quota: Quota, jobs: Sequence[JobRecord]) -> None:
    """Refuse another job to who has used up their disk space."""
    used = uses_by_owner(jobs).get(name, OwnUse()).bytes
    if quota.disk_bytes is not None and used >= quota.disk_bytes:
        raise UserError(
            "studio",
            f"room below the disk quota of {quota.disk_bytes / 1e9:.6g} GB is required, got runs of {used / 1e9:.6g} GB. Delete runs, or ask an "
            "administrator for more.",
        )


def _owner(job: JobRecord) -> str:
    try:
        return str(json.loads((job.folder / "job.json").read_text("utf-8")).get("owner") or "")
    except (OSError, ValueError, AttributeError):  # a damaged job is listed by the queue itself
        return ""


def _size(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # replaced meanwhile
                continue
    return total
