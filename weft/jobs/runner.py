"""Runs the jobs of a queue, each in a process of its own, a few at a time.

The queue is on disk, and a job outlives its runner: when a runner is killed, running jobs go on, and the next runner counts them. One
runner serves a queue; jobs are submitted, paused and cancelled by any process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ..errors import RunError, UserError
from ..locks import one_writer
from .queue import JobQueue
from .record import FAILED, LOST, REQUEUED, RUNNING, WAITING, JobRecord

POLL = 0.2  # seconds between two looks at the queue

Watcher = Callable[[JobRecord, str], None]  # is told "started" and "ended"


def ignore(job: JobRecord, what: str) -> None:
    """Takes no notice of a job."""


class Runner:
    """Starts waiting jobs, `at_once` at the same time; `watcher` is called when one starts and when one ends."""

    def __init__(self, queue: JobQueue, at_once: int = 1, watcher: Watcher = ignore) -> None:
        self.queue, self.at_once, self.watcher = queue, at_once, watcher
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}

    def run(self, stay: bool = False, ended: threading.Event | None = None) -> None:
        """Run jobs until none is waiting or running; with `stay`, also those that are submitted later, until interrupted.

        When it is interrupted or terminated, the jobs it started stop with a checkpoint and wait in the queue again. When `ended` is
        set, it returns, and the jobs it started go on.
        """
        ended = ended or threading.Event()
        self.queue.folder.mkdir(parents=True, exist_ok=True)
        self._check_alone()
        with one_writer(self.queue.folder):
            try:
                while (self._step() or stay) and not ended.wait(POLL):
                    pass
            except BaseException:
                self._give_back()
                raise

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _check_alone(self) -> None:
        other = self.queue.runner()
        if other is not None and other.is_here:  # the lock itself knows about other machines
            raise UserError(
                "jobs", f"process {other.pid} runs the jobs in {self.queue.root} already. It starts new ones too."
            )

    def _step(self) -> bool:
        """Start what can start; whether anything is waiting or running."""
        self._reap()
        states = {job.folder: job.state.state for job in self.queue.jobs()}
        active = {folder for folder, state in states.items() if state == RUNNING} | set(self._processes)
        waiting = [folder for folder, state in states.items() if state == WAITING and folder not in active]
        for folder in waiting[: max(0, self.at_once - len(active))]:
            self._start(JobRecord(folder))
        return bool(active or waiting)

    def _start(self, job: JobRecord) -> None:
        command = [sys.executable, "-m", "weft.jobs.worker", str(job.folder)]
        try:
            with (job.folder / "output.txt").open("ab") as output:
                self._processes[job.folder] = subprocess.Popen(
                    command,
                    cwd=job.start_folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )  # its own session: Ctrl-C and a closed terminal reach the runner alone
            self.watcher(job, "started")
        except (OSError, RunError) as error:
            job.set(FAILED, f"it could not be started: {error}")
            self.watcher(job, "ended")

    def _reap(self) -> None:
        for folder, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[folder]
                job = JobRecord(folder)
                if code != 0:
                    _explain_end(job, code)
                self.watcher(job, "ended")

    def _give_back(self) -> None:
        """Stop the jobs of this runner with a checkpoint, and leave them in the queue."""
        for folder, process in self._processes.items():
            try:
                JobRecord(folder).stop(REQUEUED)
            except UserError:
                pass  # it has just ended
            if JobRecord(folder).state.state == WAITING:
                process.terminate()  # it was still starting
        for folder, process in self._processes.items():
            process.wait()
            self.watcher(JobRecord(folder), "ended")


def _explain_end(job: JobRecord, code: int) -> None:
    """Record why a process ended that could not do so itself: a worker that could ends with code 0."""
    with job.changing() as now:
        if now.state == WAITING or now.why == LOST:
            name = (
                f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}; see {job.folder / 'output.txt'}"
            )
            job.set(FAILED, f"its process ended with {name}")
        elif now.why:
            job.set(now.state, now.why)  # as requested: no process is left to record it
