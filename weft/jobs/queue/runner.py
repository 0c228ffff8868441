"""Runs the jobs of a queue, each in a process of its own, on the GPUs and the CPU slots of this machine.

The queue is on disk, and a job outlives its runner: when a runner is killed, running jobs go on, and the next runner counts them. Jobs whose
process was killed, or that were lost with the machine, continue from their last checkpoint, a few times. One runner serves a queue; jobs are
submitted, moved, held, paused and cancelled by any process. What starts where is decided in scheduler.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ...errors import RunError, UserError
from ...locks import lock_holder, one_writer
from ..events import replay
from .history import record_use
from .job_queue import JobQueue
from .kinds import TRAIN
from .plan import RunnerSlots, queue_plan, write_slots
from .quotas import read_quotas
from .record import DONE, FAILED, LOST, REQUEUED, RUNNING, WAITING, JobRecord
from .schedule import JobSchedule, change_schedule
from .scheduler import Placement
from .slots import ComputeSlot, machine_slots, memory_by_process
from .view import JobView, QueueView

POLL = 0.2  # seconds between two looks at the queue
REPLAN = 5.0  # seconds after which the plan is made again, though nothing has changed
MEASURE = 5.0  # seconds between two measurements of GPU memory
ATTEMPTS = 3  # of a job whose process is killed
KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # by somebody, not by an error of the program

Watcher = Callable[[JobRecord, str], None]  # called with "started" and "ended"


def ignore(job: JobRecord, what: str) -> None:
    """Takes no notice of a job."""


class Runner:
    """Starts waiting jobs; `watcher` is called when one starts and when one ends.

    `at_once` trainings run on the CPU at the same time. GPUs are shared by memory; `slots` replaces those of the machine. `per_owner` is the
    most jobs of one person that run at the same time. `threads` is how many each job computes with; None: as the setting says.
    """

    def __init__(
        self, queue: JobQueue, at_once: int = 1, watcher: Watcher = ignore, slots: Sequence[ComputeSlot] | None = None,
        per_owner: int | None = None, threads: int | None = None,
    ) -> None:  # fmt: skip
        self.queue, self.watcher = queue, watcher
        self.environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as NVIDIA's management library counts
        if threads is not None:
            self.environment["WEFT_THREADS"] = str(threads)
        self.offered = RunnerSlots(tuple(machine_slots(at_once) if slots is None else slots), per_owner)
        self._view = QueueView(queue.folder)
        self._processes: dict[Path, subprocess.Popen[bytes]] = {}
        self._planned: tuple[float, object] = (0.0, None)
        self._measured = 0.0

    def run(self, stay: bool = False, ended: threading.Event | None = None) -> None:
        """Run jobs until none can run any more; with `stay`, also those that are submitted later, until interrupted.

        When it is interrupted or terminated, the jobs it started stop with a checkpoint and wait in the queue again. When `ended` is
        set, it returns, and the jobs it started continue.
        """
        ended = ended or threading.Event()
        with self.serving():
            while (self.step() or stay) and not ended.wait(POLL):
                pass
            self.collect()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Inside, this runner serves the queue: who has a loop of their own calls `step` in it."""
        self.queue.folder.mkdir(parents=True, exist_ok=True)
        self._check_alone()
        with one_writer(self.queue.folder):
            write_slots(self.queue.folder, self.offered)
            try:
                yield
            except BaseException:
                self._give_back()
                raise

    def step(self) -> bool:
        """Note what has ended and start what can start; whether anything runs, or waits and can still start."""
        self._reap()
        jobs = self._view.jobs()
        lost = [one.record for one in jobs if one.state.why == LOST and one.record.folder not in self._processes]
        for record in lost:
            lose(record, LOST)
        jobs = self._view.jobs() if lost else jobs
        active = {one.number for one in jobs if one.is_running} | {int(folder.name) for folder in self._processes}
        self._measure(jobs)
        waiting = [one for one in jobs if one.state.state == WAITING and one.number not in active]
        started = self._start_planned(jobs, active) if waiting else 0
        startable = not self._view.order().paused and any(not one.schedule.held for one in waiting)
        # Without anything that runs, a job that does not start now never does.
        return bool(active or started or (startable and self._planned[1] is None))

    def collect(self) -> None:
        """Reap the processes whose jobs have ended; the others continue."""
        for folder, process in self._processes.items():
            if JobRecord(folder).state.has_ended:
                process.wait()
        self._reap()

    # --- inside -------------------------------------------------------------------------------------------------------------

    def _check_alone(self) -> None:
        other = self.queue.runner()
        if other is not None and other.is_here:  # the lock itself knows about other machines
            raise UserError(
                "jobs", f"process {other.pid} runs the jobs in {self.queue.root} already. It starts new ones too."
            )

    def _start_planned(self, jobs: Sequence[JobView], active: set[int]) -> int:
        """Start the jobs of the plan; how many. The same queue has the same plan, but for what is forecast."""
        seen = (
            [(one.number, one.state, one.schedule) for one in jobs],
            self._view.order(),
            active,
            read_quotas(self._view.folder),
        )
        if self._planned[1] == seen and time.monotonic() - self._planned[0] < REPLAN:
            return 0
        made = queue_plan(self._view, jobs, self.offered, time.time(), starting=tuple(active))
        records = {one.number: one.record for one in jobs}
        for placement in made.starting:
            self._start(records[placement.job.number], placement)
        self._planned = time.monotonic(), None if made.starting else seen
        return len(made.starting)

    def _start(self, job: JobRecord, placement: Placement) -> None:
        now = round(time.time(), 3)

        def take(known: JobSchedule) -> JobSchedule:
            return known if known.held else replace(known, slots=placement.slots, started=now, memory=None)

        command = [sys.executable, "-m", "weft.jobs.queue.worker", str(job.folder)]
        try:
            job.settle()
            if change_schedule(job.folder, take).held:
                return  # held since the plan was made
            with (job.folder / "output.txt").open("ab") as output:
                self._processes[job.folder] = subprocess.Popen(
                    command,
                    cwd=job.start_folder,
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )  # its own session: Ctrl-C and a closed terminal reach the runner alone
            self.watcher(job, "started")
        except (OSError, RunError) as error:
            job.set(FAILED, f"it could not be started: {error}")
            self.watcher(job, "ended")

    def _measure(self, jobs: Sequence[JobView]) -> None:
        """Note the GPU memory of running jobs, the most seen of each."""
        running = [one for one in jobs if one.state.state == RUNNING and one.needs.slot == "gpu"]
        if not running or time.monotonic() - self._measured < MEASURE:
            return
        self._measured, used = time.monotonic(), memory_by_process()
        for one in running:
            holder = lock_holder(one.record.folder)
            found = used.get(holder.pid, 0) if holder is not None and holder.is_here else 0
            if found > (one.schedule.memory or 0):
                _note_memory(one.record, found)

    def _reap(self) -> None:
        for folder, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[folder]
                job = JobRecord(folder)
                if code != 0:
                    _explain_end(job, code)
                elif job.state.state == DONE:
                    _remember(self.queue.folder, job)
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


def _note_memory(job: JobRecord, found: int) -> None:
    change_schedule(job.folder, lambda known: replace(known, memory=found))


def _explain_end(job: JobRecord, code: int) -> None:
    """Record why a process ended that could not do so itself: a worker that could ends with code 0."""
    with job.changing() as now:
        if lock_holder(job.folder) is not None:
            return  # another process works on it: the one that ended came second
        if now.state == WAITING or now.why == LOST:
            if code < 0 and -code in KILLED:
                lose(job, f"its process ended with signal {signal.Signals(-code).name}")
                return
            name = (
                f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}; see {job.folder / 'output.txt'}"
            )
            job.set(FAILED, f"its process ended with {name}")
        elif now.why:
            job.set(now.state, now.why)  # as requested: no process is left to record it


def lose(job: JobRecord, why: str, attempts: int = ATTEMPTS) -> None:
    """A job whose process was killed waits again and continues from its checkpoint, unless that has happened too often."""
    losses = change_schedule(job.folder, lambda known: replace(known, losses=known.losses + 1)).losses
    if losses < attempts:
        job.set(WAITING, f"{why}; it continues from its last checkpoint, attempt {losses + 1} of {attempts}")
    else:
        job.set(FAILED, f"{why}, for the {losses}. time")


def _remember(folder: Path, job: JobRecord) -> None:
    """Record what a job took, for the forecasts of others like it."""
    try:
        settings, kind = job.settings, job.kind
        schedule = change_schedule(job.folder, lambda known: known)
        events = list(replay(job.folder))
        begun = max(
            (one.time for one in events if one.type == "state" and one.facts.get("state") == RUNNING), default=0.0
        )
        epochs = [one.time for one in events if one.type == "epoch" and one.time >= (schedule.started or 0.0)]
        seconds = (epochs[-1] - (schedule.started or begun)) / len(epochs) if epochs else None
        if kind != TRAIN and schedule.started is not None:
            seconds = job.state.time - schedule.started
        record_use(folder, kind, settings, seconds, schedule.memory)
    except RunError:
        return  # forecasts are not worth the queue
