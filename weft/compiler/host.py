"""The machine that compiles and runs programs."""

from __future__ import annotations

import os
from functools import cache


@cache
def usable_cores() -> int:
    """The number of cores that this process may run on, as of the first call."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
