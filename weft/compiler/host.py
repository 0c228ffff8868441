"""The machine that compiles and runs programs."""

from __future__ import annotations

import os
from functools import cache


@cache
def usable_cores() -> int:
    """The cores this process may run on, when it first asked."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
