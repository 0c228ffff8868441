"""Checks the scheduler with a simulated clock and invented GPUs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from queue_tools import GB, SLOTS, gpu_job, on, slot_job, started
from weft.jobs.queue.needs import CPU, GPU, TASK, JobNeeds
from weft.jobs.queue.scheduler import PATIENCE, Placement, QueuedJob, clock, plan
from weft.jobs.queue.slots import JOBS_PER_GPU, ComputeSlot

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
