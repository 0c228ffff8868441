"""Pauses Python's cyclic garbage collector during compilation.

Compiling creates many small objects that live until it is done, and the collector would traverse them repeatedly: a tenth of the
time for small networks, a third for deep ones.
"""

from __future__ import annotations

import gc
import os
import threading
from contextlib import ContextDecorator


class _GarbageCollectionPause(ContextDecorator):
    """All threads share the collector: it is paused from the time the first one starts to compile until the last one is done."""

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
            self._busy = max(self._busy - 1, 0)  # a process forked inside the block leaves it, too
            if not self._busy and self._before:
                gc.enable()

    def forked(self) -> None:
        """Resume collection in a forked process, which has none of the threads that were compiling."""
        if self._busy and self._before:
            gc.enable()
        self._lock, self._busy = threading.Lock(), 0


gc_paused = _GarbageCollectionPause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=gc_paused.forked)
