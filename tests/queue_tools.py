"""Jobs and slots for tests of the scheduler and of the queue on disk."""

from __future__ import annotations

from dataclasses import replace

from weft.jobs import JobQueue
from weft.jobs.queue.needs import CPU, GPU, JobNeeds
from weft.jobs.queue.plan import RunnerSlots, write_slots
from weft.jobs.queue.scheduler import QueuedJob, plan
from weft.jobs.queue.slots import ComputeSlot, host_slots

GB = 10**9
SLOTS = [ComputeSlot("cuda:0", GPU, 24 * GB), ComputeSlot("cuda:1", GPU, 24 * GB), *host_slots(1, 2)]
QUICK = {
    "data": "digits",
    "model": "logistic_regression",
    "epochs": 2,
    "schedule": "constant",
}  # settings of a training


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


def has_gpus(queue: JobQueue, count: int) -> None:
    """The last runner of the queue had so many GPUs."""
    queue.folder.mkdir(parents=True)
    write_slots(queue.folder, RunnerSlots(tuple(ComputeSlot(f"cuda:{i}", GPU, 24 * GB) for i in range(count))))
