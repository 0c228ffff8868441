"""Runs jobs in processes of their own, a few at a time; the others wait. A job outlives its runner: its state is on disk.

runner = Runner("runs")
job = runner.submit({"data": "digits", "model": "lenet5", "epochs": 3})
for event in job.follow(): ...
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..io.files import replace_file
from .checks import check_settings
from .recipes import with_recipe
from .record import DONE, FAILED, RUNNING, STOPPED, WAITING, JobRecord

FOLDER = ".jobs"  # below the folder of runs


class Runner:
    """A queue of jobs, of which `at_once` run at the same time."""

    def __init__(self, root: str | os.PathLike[str] = "runs", at_once: int = 1) -> None:
        self.root, self.at_once = Path(root), at_once
        self._queue: list[JobRecord] = []
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        self._changed = threading.Condition(threading.RLock())

    def submit(self, given: Mapping[str, Any]) -> JobRecord:
        """Check the settings and add a job to the queue; it starts when there is room."""
        settings = with_recipe("jobs", {"runs": str(self.root), **given})
        if settings["data"] is None:
            raise UserError("jobs", "a job requires data, got none. Give data=digits or another dataset.")
        check_settings("train", settings)
        return self._enqueue(JobRecord.create(self.root / FOLDER, settings))

    def jobs(self) -> list[JobRecord]:
        """All jobs below this root, of other runners too, the oldest first."""
        folders = [p for p in (self.root / FOLDER).glob("*") if p.name.isdigit()]
        return [JobRecord(p) for p in sorted(folders, key=lambda p: int(p.name))]

    def cancel(self, job: JobRecord) -> None:
        """Stop a job for good: a waiting one at once, a running one at the end of its step, with a checkpoint."""
        self._stop(job, "cancelled")

    def pause(self, job: JobRecord) -> None:
        """Stop a job with a checkpoint, and give memory and device back; `resume` goes on with the same bits."""
        self._stop(job, "paused")

    def resume(self, job: JobRecord) -> JobRecord:
        """Put a job that was stopped, or has failed, into the queue again. It continues from its checkpoint, if there is one."""
        state = job.state.state
        if state not in (STOPPED, FAILED):
            raise UserError("jobs", f"a job that was stopped or has failed is required, got one that is {state}.")
        job.set(WAITING)
        return self._enqueue(job)

    def wait(self, job: JobRecord, seconds: float | None = None) -> str:
        """Wait until a job of this runner does not run any more; its state."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_mine(job), seconds)
        return job.state.state

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _is_mine(self, job: JobRecord) -> bool:
        return job.folder in self._processes or any(one.folder == job.folder for one in self._queue)

    def _enqueue(self, job: JobRecord) -> JobRecord:
        with self._changed:
            self._queue.append(job)
            self._start_waiting()
        return job

    def _start_waiting(self) -> None:
        while self._queue and len(self._processes) < self.at_once:
            job = self._queue.pop(0)
            with (job.folder / "output.txt").open("ab") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "weft.jobs.worker", str(job.folder)],
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                )  # fmt: skip
            self._processes[job.folder] = process
            threading.Thread(target=self._wait_for, args=(job, process), daemon=True).start()

    def _wait_for(self, job: JobRecord, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._changed:
            if job.state.state in (WAITING, RUNNING) or (code < 0 and job.state.state == FAILED):
                self._explain_end(job, code)
            del self._processes[job.folder]
            self._start_waiting()
            self._changed.notify_all()

    def _explain_end(self, job: JobRecord, code: int) -> None:
        """A process that could not say itself why it ended."""
        if code == -signal.SIGTERM:  # before it could listen
            job.set(STOPPED, _request(job) or "terminated")
        elif code < 0:
            job.set(FAILED, f"its process was ended by {signal.Signals(-code).name}")
        elif code > 0:
            job.set(FAILED, f"its process ended with the code {code}; see {job.folder / 'output.txt'}")
        else:
            job.set(DONE)

    def _stop(self, job: JobRecord, why: str) -> None:
        with self._changed:
            if any(one.folder == job.folder for one in self._queue):
                self._queue = [one for one in self._queue if one.folder != job.folder]
                job.set(STOPPED, why)
                self._changed.notify_all()
                return
            process = self._processes.get(job.folder)
            if process is None:
                raise UserError("jobs", f"a job that waits or runs is required, got one that is {job.state.state}.")
            replace_file(job.folder / "request", [why.encode()], "jobs")
            process.send_signal(signal.SIGTERM)


def _request(job: JobRecord) -> str:
    path = job.folder / "request"
    return path.read_text(encoding="utf-8") if path.exists() else ""
