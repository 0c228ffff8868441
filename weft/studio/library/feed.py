"""One thread that looks at runs, jobs and the machine each second, and tells those who listen. Pages never look at the disk for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import field

from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.record import RUNNING
from ...records import dataclass
from .activity import Activity, EndedJob, activities, ended_jobs
from .datasets import DatasetIndex, DatasetRow
from .folds import FoldsIndex, FoldsSnapshot
from .machine import Machine, MachineLoad
from .networks import network_count
from .runs import RunIndex
from .schedule import QueueSnapshot, QueueWatch
from .sweeps import SweepIndex, SweepSnapshot

LOG = logging.getLogger("weft.studio")
PERIOD = 1.0  # seconds between two looks
ENDED = 50  # jobs that have ended and are listed
SEARCH = 5.0  # seconds between two looks at all runs; those that run are looked at each time


@dataclass(frozen=True)
class Snapshot:
    """What was going on at one time. `runs_version` grows with every change of a run."""

    load: MachineLoad
    activities: tuple[Activity, ...]
    runs: int
    runs_version: int
    ended: tuple[EndedJob, ...] = ()
    datasets: tuple[DatasetRow, ...] = ()
    queue: QueueSnapshot = field(default_factory=QueueSnapshot)
    runs_queue: bool = True  # whether a process runs the queue
    asked: bool = False  # whether somebody has just changed something and waits to see it
    sweeps: tuple[SweepSnapshot, ...] = ()  # the newest first
    folds: tuple[FoldsSnapshot, ...] = ()  # cross-validations
    networks: int = 0

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
        self._watch, self._sweeps, self._folds = QueueWatch(queue), SweepIndex(index.root), FoldsIndex(index.root)
        self._version, self._searched, self._networks = 0, 0.0, 0
        self._subscribers: set[Subscriber] = set()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._complained = ""
        self.snapshot = self.look()

    def look(self, at_all_runs: bool = False) -> Snapshot:
        """Look now: at all runs if that was asked for or is due, else at those that run."""
        now = time.monotonic()
        if at_all_runs or now - self._searched >= SEARCH:
            self._searched = now
            self._version += self.index.refresh()
            self._networks = network_count(self.index.root)
        else:
            self._version += self.index.refresh_running()
        rows = self.index.rows()
        seen = self._watch.look()
        if any(
            one.state.state == RUNNING and one.state.run and self.index.at(one.state.run) is None for one in seen.jobs
        ):
            self._searched = 0.0  # a job has begun a run that the index does not know yet
        ended = tuple(ended_jobs(seen.jobs, ENDED, rows))
        datasets = () if self.datasets is None else self.datasets.refresh()
        self.snapshot = Snapshot(
            self.machine.read(), tuple(activities(seen, rows)), len(rows), self._version, ended, datasets, seen, self.queue.runner() is not None,
            at_all_runs, self._sweeps.refresh(seen.jobs), self._folds.refresh(seen.jobs), self._networks,
        )  # fmt: skip
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
            woken = self._wake.is_set()
            self._wake.clear()  # before the look: what changes while it looks is seen by the next one
            try:
                self._loop.call_soon_threadsafe(self._tell, self.look(woken))
            except Exception as error:  # a disk that fails for a moment must not end the feed of all pages
                self._complain(error)
            self._wake.wait(PERIOD)

    def _tell(self, snapshot: Snapshot) -> None:
        for subscriber in list(self._subscribers):
            try:
                subscriber(snapshot)
            except Exception as error:  # of one page: the others are told
                self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Write to the log of the server, once for the same error in a row."""
        if repr(error) != self._complained:
            self._complained = repr(error)
            LOG.error("the studio's feed: %s; it goes on", error, exc_info=error)
