"""Checks the queue with workers and runners that are killed at every point."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_tools import GB, QUICK, SLOTS, has_gpus
from weft.jobs import JobQueue, JobRecord, Runner, submit
from weft.jobs.queue import runner as runner_module
from weft.jobs.queue.history import past_use
from weft.jobs.queue.needs import GPU, JobNeeds
from weft.jobs.queue.plan import RunnerSlots, read_slots, write_slots
from weft.jobs.queue.record import LOST
from weft.jobs.queue.schedule import change_schedule, read_schedule
from weft.jobs.queue.view import QueueView
from weft.locks import lock_holder, one_writer


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    monkeypatch.chdir(tmp_path)
    return JobQueue("runs")


# A worker without training: it works until it finds the file `go`.
WORKER = f"""#!{sys.executable}
import sys, time, pathlib
from weft.jobs.queue.record import JobRecord
from weft.locks import one_writer
folder = pathlib.Path(sys.argv[-1])
record = JobRecord(folder)
with one_writer(folder):
    if record.claim() is not None:
        while not (folder / "go").exists():
            time.sleep(0.01)
        record.set("done")
"""


@pytest.fixture
def fake_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "worker"
    script.write_text(WORKER)
    script.chmod(0o755)
    monkeypatch.setattr(runner_module, "sys", SimpleNamespace(executable=str(script)))
    monkeypatch.setattr(runner_module, "POLL", 0.02)


class Running:
    """A runner in a thread; `die` leaves everything as it is, as kill -9 does."""

    def __init__(self, queue: JobQueue) -> None:
        self.end = threading.Event()
        self.runner = Runner(queue, slots=SLOTS)
        self.thread = threading.Thread(target=self.runner.run, args=(True, self.end))
        self.thread.start()

    def die(self) -> None:
        self.end.set()
        self.thread.join()


def until(condition: object, seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.01)


def kill(job: JobRecord) -> None:
    holder = lock_holder(job.folder)
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    until(lambda: lock_holder(job.folder) != holder)


def is_running(job: JobRecord) -> bool:
    return job.state.state == "running"


@pytest.mark.usefixtures("fake_worker")
def test_workers_and_runners_that_are_killed_lose_nothing(queue: JobQueue) -> None:
    needs = JobNeeds(GPU, 1, None, 5 * GB)
    has_gpus(queue, 2)
    job, other = queue.add(QUICK, needs=needs), queue.add(QUICK, needs=replace(needs, gpus=2, memory=24 * GB))
    runners = [Running(queue)]
    try:
        until(lambda: is_running(job))
        slots = read_schedule(job.folder).slots
        kill(job)  # the worker
        until(lambda: is_running(job))
        assert (read_schedule(job.folder).losses, read_schedule(job.folder).slots) == (1, slots)
        runners[-1].die()  # the runner: the job goes on
        assert is_running(job)
        runners.append(Running(queue))
        time.sleep(0.1)
        assert other.state.state == "waiting", "the next runner counts the job that runs"
        runners[-1].die()
        kill(job)  # both, as when the machine is restarted
        assert job.state.why == LOST
        runners.append(Running(queue))
        until(lambda: is_running(job))
        events = [event["why"] for event in job.events() if event.type == "state"]
        assert f"{LOST}; it continues from its last checkpoint, attempt 3 of 3" in events
        kill(job)
        until(lambda: job.state.state == "failed" and job.state.why != LOST)
        assert job.state.why == "its process ended with signal SIGKILL, for the 3. time"
        until(lambda: is_running(other))
        assert set(read_schedule(other.folder).slots) == {"cuda:0", "cuda:1"}
        queue.resume(job)
        (other.folder / "go").touch()
        until(lambda: other.state.state == "done")
        until(lambda: is_running(job))
        (job.folder / "go").touch()
        until(lambda: job.state.state == "done")
    finally:
        for one in runners:
            one.die()
            for process in one.runner._processes.values():
                process.wait()


@pytest.mark.usefixtures("fake_worker")
def test_a_held_job_does_not_start_and_a_runner_ends_when_nothing_can_start(queue: JobQueue) -> None:
    has_gpus(queue, 5)
    held, missing, fine = queue.add(QUICK), queue.add(QUICK, needs=JobNeeds(GPU, 5)), queue.add(QUICK)
    queue.hold(held)
    (fine.folder / "go").touch()
    Runner(queue, slots=SLOTS).run()
    assert [job.state.state for job in (held, missing, fine)] == ["waiting", "waiting", "done"]
    assert read_slots(queue.folder) == RunnerSlots(tuple(SLOTS))


def test_a_process_that_came_second_does_not_fail_the_job_of_the_first(queue: JobQueue) -> None:
    """A runner that died while its worker was starting: the next runner starts another, which finds the lock taken."""
    job = queue.add(QUICK)
    with one_writer(job.folder):
        runner_module._explain_end(job, 1)
        assert job.state.state == "waiting"
        write_slots(queue.folder, RunnerSlots())
        view = QueueView(queue.folder)
        assert view.jobs()[0].is_running


def test_a_killed_training_continues_from_its_checkpoint(queue: JobQueue) -> None:
    """That it ends with the same bits is checked in test_runner, where it is paused."""
    job = submit(queue, {**QUICK, "epochs": 30, "name": "killed"})
    thread = threading.Thread(target=Runner(queue).run)
    thread.start()
    for event in job.follow():
        if event.type == "epoch":
            kill(job)
            break
    thread.join()
    assert (job.state.state, read_schedule(job.folder).losses) == ("done", 1)
    assert [one.name for one in (queue.root / "classify").iterdir()] == ["killed"], "it is the same run"
    rows = (queue.root / "classify" / "killed" / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(i + 1) for i in range(30)]
    assert past_use(queue.folder, "train", job.settings).seconds is not None


# What a crash can leave behind at each point of a job's life.
def _slots_taken(job: JobRecord) -> None:
    change_schedule(job.folder, lambda known: replace(known, slots=("cpu:0",), started=1.0))


def _claimed(job: JobRecord) -> None:
    job.claim()


def _asked_to_wait(job: JobRecord) -> None:
    job.claim()
    (job.folder / "request").write_text("requeued")


def _half_written(job: JobRecord) -> None:
    (job.folder / ".state.json.4194301.1").write_text('{"state": "ru')
    (job.folder / ".schedule.json.4194301.1").write_text("{")
    with (job.folder / "events.jsonl").open("a") as file:
        file.write('{"type": "progr')


def _lock_of_a_dead_process(job: JobRecord) -> None:
    job.claim()
    (job.folder / ".lock").write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname(), "began": 1}))


def _damaged_schedule(job: JobRecord) -> None:
    (job.folder / "schedule.json").write_text("{")


@pytest.mark.usefixtures("fake_worker")
@pytest.mark.parametrize(
    "left", [_slots_taken, _claimed, _asked_to_wait, _half_written, _lock_of_a_dead_process, _damaged_schedule]
)
def test_what_a_crash_leaves_behind_does_not_stop_a_job(queue: JobQueue, left: Callable[[JobRecord], None]) -> None:
    job, other = queue.add(QUICK), queue.add(QUICK)
    left(job)
    for one in (job, other):
        (one.folder / "go").touch()
    running = Running(queue)
    try:
        until(lambda: [one.state.state for one in (job, other)] == ["done", "done"])
        until(lambda: not running.runner._processes)
    finally:
        running.die()
