"""Checks the scheduler with a simulated clock and invented GPUs, and the queue on disk with processes that are killed at every point."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from weft.cli import main
from weft.errors import UserError
from weft.io.files import append_line
from weft.jobs import JobQueue, JobRecord, Runner, retry, submit
from weft.jobs.events import Event
from weft.jobs.queue import runner as runner_module
from weft.jobs.queue.forecast import memory_forecast
from weft.jobs.queue.history import past_use, record_use
from weft.jobs.queue.needs import CPU, GPU, TASK, JobNeeds, needs_of
from weft.jobs.queue.plan import RunnerSlots, queue_plan, read_slots, write_slots
from weft.jobs.queue.record import LOST
from weft.jobs.queue.remedies import remedy
from weft.jobs.queue.schedule import JobSchedule, change_schedule, read_schedule
from weft.jobs.queue.scheduler import PATIENCE, Placement, QueuedJob, clock, plan
from weft.jobs.queue.slots import JOBS_PER_GPU, ComputeSlot, gpu_slots, host_slots, memory_by_process
from weft.jobs.queue.view import QueueView
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.locks import lock_holder, one_writer

GB = 10**9
SLOTS = [ComputeSlot("cuda:0", GPU, 24 * GB), ComputeSlot("cuda:1", GPU, 24 * GB), *host_slots(1, 2)]


def gpu_job(
    number: int, memory: float | None = 5, gpus: int = 1, seconds: float | None = 600, **more: object
) -> QueuedJob:
    needs = JobNeeds(GPU, gpus, more.pop("device", None), None if memory is None else int(memory * GB), seconds)  # type: ignore[arg-type]
    return QueuedJob(number, f"job-{number}", needs, **more)  # type: ignore[arg-type]


def slot_job(number: int, slot: str = CPU, seconds: float = 600, **more: object) -> QueuedJob:
    return QueuedJob(number, f"job-{number}", JobNeeds(slot, seconds=seconds), **more)  # type: ignore[arg-type]


def on(job: QueuedJob, *slots: str, ends: float | None = None) -> QueuedJob:
    return replace(job, slots=slots, ends=ends)


def started(*args: object, **settings: object) -> dict[int, tuple[str, ...]]:
    return {one.job.number: one.slots for one in plan(SLOTS, *args, **settings).starting}  # type: ignore[arg-type]


# --- one decision ---------------------------------------------------------------------------------------------------------------


def test_small_jobs_share_a_gpu_and_large_ones_do_not() -> None:
    jobs = [gpu_job(i, 10) for i in range(1, 7)]
    assert started([], jobs, 0.0) == {1: ("cuda:0",), 2: ("cuda:1",), 3: ("cuda:0",), 4: ("cuda:1",)}
    small = [gpu_job(i, 0.1) for i in range(1, 12)]
    assert len(started([], small, 0.0)) == 2 * JOBS_PER_GPU
    unknown = [gpu_job(1, None), gpu_job(2, 1), gpu_job(3, 1)]
    assert started([], unknown, 0.0) == {1: ("cuda:0",), 2: ("cuda:1",), 3: ("cuda:1",)}


def test_jobs_fill_a_gpu_in_use_when_a_job_waits_for_whole_ones() -> None:
    there = [on(gpu_job(9, 5), "cuda:1", ends=600)]
    assert started(there, [gpu_job(1, 5)], 0.0) == {1: ("cuda:0",)}
    behind = started(there, [gpu_job(1, 5), gpu_job(2, 23, gpus=2)], 0.0)
    assert behind == {1: ("cuda:1",)}


def test_a_named_gpu_is_the_only_one_that_will_do_and_more_than_a_gpu_has_is_all_of_the_largest() -> None:
    assert started([], [gpu_job(1, device="cuda:1")], 0.0) == {1: ("cuda:1",)}
    different = [ComputeSlot("cuda:0", GPU, 8 * GB), ComputeSlot("cuda:1", GPU, 80 * GB)]
    for memory in (40, 100):
        assert [one.slots for one in plan(different, [], [gpu_job(1, memory)], 0.0).starting] == [("cuda:1",)]
    again = gpu_job(1, slots=("cuda:1",))
    assert started([], [again], 0.0) == {1: ("cuda:1",)}, "where it ran before, it continues with the same bits"


def test_tasks_do_not_wait_for_trainings() -> None:
    running = [on(slot_job(9), "cpu:0", ends=600)]
    made = plan(SLOTS, running, [slot_job(1), slot_job(2, TASK), slot_job(3, TASK), slot_job(4, TASK)], 0.0)
    assert [one.slots for one in made.starting] == [("task:0",), ("task:1",)]
    assert made.reasons == {
        1: "CPU slot 1 is busy with job-9",
        4: "All 2 slots are busy; job-2 is the first to end",
    }


def test_jobs_of_a_runner_that_had_more_slots_are_counted() -> None:
    running = [on(slot_job(9), "cpu:3", ends=600)]
    assert started(running, [slot_job(1)], 0.0) == {}


def test_one_person_runs_so_many_jobs_at_a_time() -> None:
    jobs = [slot_job(i, TASK, owner="anna") for i in (1, 2)] + [slot_job(3, TASK, owner="ben")]
    made = plan(SLOTS, [], jobs, 0.0, per_owner=1)
    assert [one.job.number for one in made.starting] == [1, 3]
    assert made.reasons[2] == "anna runs 1 jobs already, the most for one person"


def test_why_a_job_waits() -> None:
    running = [on(gpu_job(8, 14.4), "cuda:0", ends=540), on(gpu_job(9, 20), "cuda:1", ends=900)]
    waiting = [
        gpu_job(1, 11.2), gpu_job(2, 18, gpus=2), gpu_job(3, 9), gpu_job(4, device="cuda:5"), gpu_job(5, gpus=3), gpu_job(6, None)
    ]  # fmt: skip
    why = plan(SLOTS, running, waiting, 0.0).reasons
    assert why[1] == "Needs 11.2 GB: GPU 0 has 9.6 GB free until job-8 ends"
    assert (
        why[2]
        == f"Waits for 2 GPUs: GPU 0 busy until about {clock(540)} with job-8, GPU 1 busy until about {clock(900)} with job-9"
    )
    assert (
        why[4]
        == "Waits for cuda:5, which this machine does not have: it has cuda:0, cuda:1. Submit it again for another device"
    )
    assert (
        why[5]
        == "Waits for 3 GPUs, which this machine does not have: it has cuda:0, cuda:1. Submit it again for another device"
    )
    assert why[6] == "Needs a whole GPU: GPU 1 has 4.0 GB free until job-9 ends"
    made = plan(SLOTS, [running[0]], [gpu_job(2, 18, gpus=2), gpu_job(3, 20)], 0.0)
    assert "GPU 1 free" in made.reasons[2]
    assert made.reasons[3] == "Behind job-2, which has the next place on GPU 0 and GPU 1"


# --- simulation -----------------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """A job of a simulation: when it is submitted, and how long it really takes."""

    job: QueuedJob
    arrives: float
    takes: float


class Simulation:
    """Runs jobs on a simulated clock, and checks after every decision that no slot holds more than it can."""

    def __init__(self, slots: list[ComputeSlot], works: list[Work], per_owner: int | None = None) -> None:
        self.slots, self.per_owner = slots, per_owner
        self.works = {work.job.number: work for work in works}
        self.starts: dict[int, float] = {}
        self.active: dict[int, tuple[Placement, float]] = {}
        self.first_plan = plan(slots, [], [w.job for w in works if w.arrives == 0], 0.0, 1e9, per_owner)

    def run(self) -> dict[int, float]:
        now = 0.0
        while True:
            self._decide(now)
            times = [end for _, end in self.active.values()]
            times += [work.arrives for work in self.works.values() if work.arrives > now]
            if not times:
                return self.starts
            now = min(times)
            self.active = {number: one for number, one in self.active.items() if one[1] > now}

    def _decide(self, now: float) -> None:
        running = [
            replace(placement.job, slots=placement.slots, ends=placement.end) for placement, _ in self.active.values()
        ]
        waiting = [
            replace(work.job, since=work.arrives)
            for number, work in self.works.items()
            if work.arrives <= now and number not in self.starts
        ]
        for one in plan(self.slots, running, waiting, now, per_owner=self.per_owner).starting:
            self.starts[one.job.number] = now
            self.active[one.job.number] = one, now + self.works[one.job.number].takes
        self._check()

    def _check(self) -> None:
        for slot in self.slots:
            there = [one for one, _ in self.active.values() if slot.name in one.slots]
            assert len(there) <= slot.most_jobs
            used = sum(slot.memory if one.memory is None else one.memory for one in there)
            assert used <= slot.memory or slot.kind != GPU, f"{slot.title} holds {used} bytes"
        for one, _ in self.active.values():
            wanted = one.job.needs.gpus if one.job.needs.slot == GPU else 1
            assert len(set(one.slots)) == wanted
        if self.per_owner is not None:
            owners = [one.job.owner for one, _ in self.active.values() if one.job.owner]
            assert all(owners.count(owner) <= self.per_owner for owner in set(owners))


def random_works(draw: random.Random, count: int, arrivals: bool) -> list[Work]:
    works = []
    for number in range(1, count + 1):
        slot = draw.choice([GPU, GPU, GPU, CPU, TASK])
        seconds = draw.choice([None, 60.0, 300.0, 1500.0, 5000.0])
        needs = JobNeeds(
            slot, draw.choice([1, 1, 1, 2]) if slot == GPU else 1, None,
            draw.choice([None, *(int(x * GB) for x in (0.3, 2, 5, 11, 18, 40))]) if slot == GPU else None, seconds,
        )  # fmt: skip
        if needs.slot == GPU and needs.gpus == 1 and draw.random() < 0.1:
            needs = replace(needs, device="cuda:1")
        job = QueuedJob(number, f"job-{number}", needs, draw.choice(["", "anna", "ben"]))
        takes = (seconds or 1800.0) * (1.0 if not arrivals else draw.choice([0.3, 1.0, 1.0, 2.5]))
        works.append(Work(job, draw.choice([0.0, draw.uniform(0, 5000)]) if arrivals else 0.0, takes))
    return works


@pytest.mark.parametrize("seed", range(12))
def test_random_jobs_all_run_and_no_slot_holds_more_than_it_can(seed: int) -> None:
    draw = random.Random(seed)
    works = random_works(draw, 30, arrivals=True)
    starts = Simulation(SLOTS, works, draw.choice([None, 1, 3])).run()
    assert len(starts) == len(works), "nobody starves"


@pytest.mark.parametrize("seed", range(8))
def test_the_forecast_of_starts_comes_true_when_jobs_take_as_long_as_forecast(seed: int) -> None:
    simulation = Simulation(SLOTS, random_works(random.Random(seed), 25, arrivals=False))
    expected = simulation.first_plan.starts
    starts = simulation.run()
    # Once a job has waited for long, others may not pass it any more; before that, forecast and fact are the same.
    early = {number for number, start in starts.items() if start < PATIENCE}
    assert {n: s for n, s in starts.items() if n in early and s > 0} == {
        n: s for n, s in expected.items() if n in early
    }


@pytest.mark.parametrize("optimism", [1.0, 0.2])
def test_a_job_that_needs_two_gpus_does_not_starve_in_a_stream_of_small_ones(optimism: float) -> None:
    """Small jobs arrive for ever. They pass while a long one keeps it waiting; if they take longer than forecast, half an hour at most."""
    large, long = Work(gpu_job(1, 20, gpus=2), 30.0, 600.0), Work(gpu_job(2, 20, seconds=1000), 0.0, 1000.0)
    stream = [Work(gpu_job(i, 11, seconds=100 * optimism), 25.0 * i - 50, 100.0) for i in range(3, 200)]
    starts = Simulation(SLOTS, [large, long, *stream]).run()
    assert starts[1] <= (1000.0 if optimism == 1.0 else PATIENCE + 200.0)
    assert sum(start < starts[1] for start in starts.values()) > 15, "others are not held up for nothing"


def test_a_short_job_passes_one_that_waits_for_two_gpus_and_a_long_one_does_not() -> None:
    running = [on(gpu_job(9, 20), "cuda:0", ends=1000)]
    jobs = [
        gpu_job(1, 20, gpus=2),
        gpu_job(2, 10, seconds=2000),
        gpu_job(3, 10, seconds=900),
        gpu_job(4, 3, seconds=None),
    ]
    assert started(running, jobs, 0.0) == {3: ("cuda:1",), 4: ("cuda:0",)}, "4 fits beside it for good"
    late = [replace(job, since=-PATIENCE) for job in jobs]
    assert started(running, late, 0.0) == {4: ("cuda:0",)}


# --- the queue on disk ----------------------------------------------------------------------------------------------------------

QUICK = {"data": "digits", "model": "logistic_regression", "epochs": 2, "schedule": "constant"}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    monkeypatch.chdir(tmp_path)
    return JobQueue("runs")


def has_gpus(queue: JobQueue, count: int) -> None:
    """The last runner of the queue had so many GPUs."""
    queue.folder.mkdir(parents=True)
    write_slots(queue.folder, RunnerSlots(tuple(ComputeSlot(f"cuda:{i}", GPU, 24 * GB) for i in range(count))))


def order(queue: JobQueue) -> list[int]:
    view = QueueView(queue.folder)
    return [one.number for one in view.waiting(view.jobs(), view.order())]


def test_jobs_are_moved_held_and_given_priorities(queue: JobQueue) -> None:
    jobs = [queue.add(QUICK) for _ in range(4)]
    queue.move(jobs[3], before=jobs[1])
    assert order(queue) == [1, 4, 2, 3]
    queue.move(jobs[0], by=1)
    queue.move(jobs[0], by=-5)
    queue.move(jobs[3])
    assert order(queue) == [1, 2, 3, 4]
    queue.prioritize(jobs[2], "high")
    assert order(queue) == [3, 1, 2, 4]
    queue.move(jobs[1], before=jobs[2])
    assert (order(queue), read_schedule(jobs[1].folder).priority_name) == ([2, 3, 1, 4], "high")
    queue.move(jobs[2], by=1)
    assert (order(queue), read_schedule(jobs[2].folder).priority_name) == ([2, 1, 3, 4], "normal")
    assert order(queue) + [5] == [*order(queue), queue.add(QUICK).number]
    queue.hold(jobs[0], "anna")
    view = QueueView(queue.folder)
    made = queue_plan(view, view.jobs(), RunnerSlots(tuple(host_slots(9))), time.time())
    assert made.reasons[1] == "Held"
    assert {one.job.number for one in made.starting} == {2, 3, 4, 5}
    queue.pause_all()
    assert queue_plan(view, view.jobs(), RunnerSlots(tuple(host_slots(9))), 0.0).starting == ()
    queue.resume_all()
    queue.release(jobs[0])
    with pytest.raises(UserError, match="a job that is held is required"):
        queue.release(jobs[0])
    with pytest.raises(UserError, match="a priority is low, normal, high, got 'urgent'"):
        queue.prioritize(jobs[0], "urgent")
    queue.cancel(jobs[0])
    with pytest.raises(UserError, match="a job that is waiting is required, got job 1, which is stopped"):
        queue.hold(jobs[0])


def test_no_move_gets_lost_when_several_are_made_at_the_same_time(queue: JobQueue) -> None:
    jobs = [queue.add(QUICK) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda job: queue.move(job, by=-(1 << 20)), jobs))
        list(pool.map(lambda job: change_schedule(job.folder, lambda s: replace(s, losses=s.losses + 1)), jobs * 4))
    assert sorted(order(queue)) == list(range(1, 9)), "each was first once"
    assert {read_schedule(job.folder).losses for job in jobs} == {4}
    assert len(json.loads((queue.folder / "queue.json").read_text())["order"]) == 8


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"order": "x", "paused": 1}', '{"priority": 7}', '{"slots": 3}', '{"priority": NaN}']
)
def test_damaged_files_cost_the_order_and_not_the_jobs(queue: JobQueue, text: str) -> None:
    jobs = [queue.add(QUICK) for _ in range(2)]
    queue.move(jobs[1], before=jobs[0])
    for path in (
        queue.folder / "queue.json",
        queue.folder / "runner.json",
        queue.folder / "history.json",
        jobs[0].folder / "schedule.json",
    ):
        path.write_text(text)
    assert order(queue) == [1, 2]
    assert read_schedule(jobs[0].folder) == JobSchedule()
    assert read_slots(queue.folder) is None
    record_use(queue.folder, "train", QUICK, 2.0, 7)
    assert past_use(queue.folder, "train", QUICK).seconds == 2.0
    queue.move(jobs[1], before=jobs[0])
    assert order(queue) == [2, 1]
    (jobs[0].folder / "job.json").write_text(text)
    assert len(QueueView(queue.folder).jobs()) == 2


def test_ended_jobs_are_read_once(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [queue.add(QUICK) for _ in range(3)]
    queue.cancel(jobs[0])
    view = QueueView(queue.folder)
    view.jobs()
    reads: list[int] = []
    real = JobRecord.state.fget
    assert real is not None
    monkeypatch.setattr(JobRecord, "state", property(lambda self: (reads.append(self.number), real(self))[1]))
    assert [one.state.state for one in view.jobs()] == ["stopped", "waiting", "waiting"]
    assert reads == [2, 3]
    queue.resume(jobs[0])
    assert view.jobs()[0].state.state == "waiting"


# --- forecasts and remedies -------------------------------------------------------------------------------------------------------


def test_needs_follow_from_kind_and_device(queue: JobQueue) -> None:
    assert needs_of("train", {"device": "cuda"}) == JobNeeds(GPU)
    assert needs_of("train", {"device": "cuda:1"}).device == "cuda:1"
    assert needs_of("train", {"device": "cuda:1"}, gpus=2).device is None
    assert (needs_of("train", {}).slot, needs_of("dataset", {}).slot, needs_of("predict", {"device": "cuda"}).slot) == (
        CPU, TASK, GPU,
    )  # fmt: skip


def test_the_memory_of_a_training_grows_with_its_batch_and_what_was_measured_counts_more(queue: JobQueue) -> None:
    def needed(**given: object) -> int:
        found = memory_forecast(validated("x", {"model": "resnet18", "device": "cuda", **given}, SETTINGS))
        assert found is not None
        return found

    assert 1e9 < needed(batch=16) < needed(batch=128) < 20e9
    assert needed(batch=128, precision="float16") < needed(batch=128)
    settings = {**QUICK, "model": "lenet5", "device": "cuda", "epochs": 3}
    has_gpus(queue, 1)
    first = queue.job(submit(queue, settings).number)
    assert 5e8 < first.submitted()["needs"]["memory"] < 1e9
    assert first.submitted()["needs"]["seconds"] is None
    record_use(queue.folder, "train", first.settings, 4.0, 2 * GB)
    later = submit(queue, settings).submitted()["needs"]
    assert (later["memory"], later["seconds"]) == (2_200_000_000, 12.0)


def test_a_job_that_ran_out_of_memory_can_be_retried_with_a_smaller_batch(queue: JobQueue) -> None:
    job = submit(queue, {**QUICK, "batch": 64, "name": "mine"}, owner="anna", priority="high")
    job.set("failed", "[cuda] the GPU is out of memory (cuMemAlloc).")
    found = remedy("train", job.state.why, job.settings)
    assert (found.reason, found.label) == ("Out of memory at batch 64.", "Retry with batch 32")
    again = retry(queue, job, found.changes)
    assert {name: again.settings[name] for name in ("batch", "accumulate", "name")} == {
        "batch": 32,
        "accumulate": 2,
        "name": None,
    }
    assert (again.submitted()["owner"], read_schedule(again.folder).priority_name) == ("anna", "high")
    advised = remedy(
        "train", "a step needs 9 GiB, and 2 GiB are free on cuda. batch=24 accumulate=3 would fit", {"batch": 64}
    )
    assert advised.label == "Retry with batch 24"
    assert remedy("train", "out of memory", {"batch": 1}).label == ""
    assert remedy("train", "x cannot be written: No space left on device.", {}).label == "Resume"
    assert remedy("dataset", "[data] there is no file a/b. Look for it.", {}).reason == "There is no file a/b."
    with pytest.raises(UserError, match="a training that has ended is required, got job 2, which is waiting"):
        retry(queue, again, {})


# --- processes that are killed ----------------------------------------------------------------------------------------------------

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


# --- GPUs, by a management library that is invented here ----------------------------------------------------------------------------


class NvmlError(Exception):
    """An error of the library."""


def fake_nvml(memory: list[int], processes: list[dict[int, int]]) -> Any:
    return SimpleNamespace(
        NVMLError=NvmlError, nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: len(memory),
        nvmlDeviceGetHandleByIndex=lambda i: i, nvmlDeviceGetUUID=lambda i: f"GPU-{i}".encode(),
        nvmlDeviceGetMemoryInfo=lambda i: SimpleNamespace(total=memory[i]),
        nvmlDeviceGetComputeRunningProcesses=lambda i: [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in processes[i].items()],
    )  # fmt: skip


def test_gpus_are_found_and_what_jobs_use_of_them_is_noted(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml([24 * GB, 80 * GB], [{7: 100, 9: GB}, {os.getpid(): 5 * GB}]))
    assert gpu_slots() == [ComputeSlot("cuda:0", GPU, 24 * GB), ComputeSlot("cuda:1", GPU, 80 * GB)]
    assert memory_by_process() == {7: 100, 9: GB, os.getpid(): 5 * GB}
    job = queue.add(QUICK, needs=JobNeeds(GPU, 1, None, 9 * GB))
    change_schedule(job.folder, lambda known: replace(known, slots=("cuda:1",)))
    runner = Runner(queue, slots=gpu_slots())
    with one_writer(job.folder):
        job.claim()
        view = QueueView(queue.folder)
        runner._measure(view.jobs())
        assert read_schedule(job.folder).memory == 5 * GB
        for epoch, memory in ((1, 9 * GB), (2, int(5.5 * GB))):  # after the first epoch, what is used counts
            append_line(
                job.folder / "events.jsonl",
                Event("progress", {"epoch": epoch, "epochs": 3, "done": 1, "total": 2}, time.time()).line(),
            )
            made = queue_plan(view, view.jobs(), runner.offered, time.time())
            assert [one.memory for one in made.placements] == [memory]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_slots() == [ComputeSlot("cuda:0", GPU, 80 * GB)]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (gpu_slots(), memory_by_process()) == ([], {})


def test_the_commands(queue: JobQueue, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str, code: int = 0) -> str:
        assert main(["job", *words]) == code
        found = capsys.readouterr()
        return found.out if code == 0 else found.err

    for _ in range(3):
        said("submit", "digits", "model=logistic_regression", "epochs=1", "priority=low")
    assert said("move", "3", "first") == "order: 3, 1, 2\n"
    assert said("move", "3", "before=2") == "order: 1, 3, 2\n"
    assert said("priority", "2", "high") == "job 2 has the priority high\n"
    assert said("hold", "1") == "job 1 is held; it waits until: weft job release 1\n"
    shown = said("list")
    assert "job 2 waits: Nothing runs the queue" in shown
    assert "job 1 waits: Held" in shown
    assert [one["priority"] for one in json.loads(said("list", "--json"))] == ["low", "high", "low"]
    assert said("release", "1") == "job 1 is released\n"
    assert "weft job move 3 up" in said("move", "3", code=2)
    assert "weft job priority 3 high" in said("priority", "3", code=2)
    assert said("cancel", "2").startswith("job 2 is stopped")
    assert said("retry", "2", "batch=8") == "job 4 is waiting\n"
