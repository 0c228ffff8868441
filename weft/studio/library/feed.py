"""One thread that looks at runs, jobs and the machine each second, and tells those who listen. Pages never look at the disk for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...jobs.queue import JobQueue
from .activity import Activity, EndedJob, activities, ended_jobs
from .datasets import DatasetIndex, DatasetRow
from .machine import Machine, MachineLoad
from .runs import RunIndex

PERIOD = 1.0  # seconds between two looks
ENDED = 50  # jobs that have ended and are listed
SEARCH = 5.0  # seconds between two searches for new runs while none is running


@dataclass(frozen=True)
class Snapshot:
    """What was going on at one time. `runs_version` grows with every change of a run."""

    load: MachineLoad
    activities: tuple[Activity, ...]
    runs: int
    runs_version: int
    ended: tuple[EndedJob, ...] = ()
    datasets: tuple[DatasetRow, ...] = ()

    def count(self, state: str) -> int:
        """How many activities are in this state."""
        return sum(one.state == state for one in self.activities)


Subscriber = Callable[[Snapshot], None]


class Feed:
    """Looks each second, and calls its subscribers in the event loop."""

    def __init__(
        self, index: RunIndex, queue: JobQueue, machine: Machine, datasets: DatasetIndex | None = None
    ) -> None:
        self.index, self.queue, self.machine, self.datasets = index, queue, machine, datasets
        self._version, self._searched = 0, 0.0
        self._subscribers: set[Subscriber] = set()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.snapshot = self.look()

    def look(self) -> Snapshot:
        """Look now."""
        now = time.monotonic()
        running = any(row.status == "running" for row in self.index.rows())
        if running or self._wake.is_set() or now - self._searched >= SEARCH:
            self._searched = now
            self._version += self.index.refresh()
        rows = self.index.rows()
        found = activities(self.queue, rows)
        ended = tuple(ended_jobs(self.queue, ENDED))
        datasets = () if self.datasets is None else self.datasets.refresh()
        self.snapshot = Snapshot(self.machine.read(), tuple(found), len(rows), self._version, ended, datasets)
        return self.snapshot

    def start(self) -> None:
        """Look from now on, in a thread; subscribers are called in the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="weft-studio-feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def refresh_soon(self) -> None:
        """Something was changed: look at once, not only when the second is over."""
        self._wake.set()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every snapshot, until the returned function is called."""
        self._subscribers.add(subscriber)
        return lambda: self._subscribers.discard(subscriber)

    def _run(self) -> None:
        assert self._loop is not None
        while not self._ended.is_set():
            snapshot = self.look()
            self._wake.clear()
            self._loop.call_soon_threadsafe(self._tell, snapshot)
            self._wake.wait(PERIOD)

    def _tell(self, snapshot: Snapshot) -> None:
        for subscriber in list(self._subscribers):
            subscriber(snapshot)
