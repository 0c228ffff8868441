"""Compiling makes a great many small objects that live until it is done. Python's search for garbage would look at all of them
again and again, which takes a tenth of the time for small networks and a third for deep ones; so it rests meanwhile.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import ContextDecorator


class _Uncollected(ContextDecorator):
    """The search is for all threads: it rests from when the first of them begins to compile until the last is done."""

    def __init__(self) -> None:
        self._lock, self._busy, self._before = threading.Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            self._busy += 1
            if self._busy == 1:
                self._before = gc.isenabled()
                gc.disable()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._busy = max(self._busy - 1, 0)  # a process that was born inside comes out, too
            if not self._busy and self._before:
                gc.enable()

    def forked(self) -> None:
        """A new process has none of the threads that were compiling, but it is as they had left it."""
        if self._busy and self._before:
            gc.enable()
        self._lock, self._busy = threading.Lock(), 0


uncollected = _Uncollected()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=uncollected.forked)
