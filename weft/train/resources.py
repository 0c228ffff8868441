"""Resource usage of the process, for events."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ..runtime.free_memory import free_bytes


def resources() -> dict[str, float | int | None]:
    """Resident memory, CPU time so far, and free memory of the device that is in use.

    >>> resources()["cpu_seconds"] > 0
    True
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "memory_bytes": _resident(used.ru_maxrss * 1024),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 2),
        "free_bytes": free_bytes(),
    }


def _resident(peak: int) -> int:
    """Resident memory now; its peak where the system reports no more."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return peak
