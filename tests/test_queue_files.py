"""Checks the queue on disk: its order, its forecasts, what it does after errors, its commands."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from queue_tools import GB, QUICK, has_gpus
from weft.cli import main
from weft.errors import UserError
from weft.io.files import append_line
from weft.jobs import JobQueue, JobRecord, Runner, retry, submit
from weft.jobs.events import Event
from weft.jobs.queue.forecast import memory_forecast
from weft.jobs.queue.history import past_use, record_use
from weft.jobs.queue.needs import CPU, GPU, TASK, JobNeeds, needs_of
from weft.jobs.queue.plan import RunnerSlots, queue_plan, read_slots
from weft.jobs.queue.remedies import remedy
from weft.jobs.queue.schedule import JobSchedule, change_schedule, read_schedule
from weft.jobs.queue.slots import ComputeSlot, gpu_slots, host_slots, memory_by_process
from weft.jobs.queue.view import QueueView
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.locks import one_writer


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobQueue:
    monkeypatch.chdir(tmp_path)
    return JobQueue("runs")


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
