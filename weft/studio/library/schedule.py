"""The queue as the pages show it: jobs in their order, the plan of the next hours, and the plan as blocks on lanes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import field

from ...device_names import read_device_name
from ...jobs.queue.job_queue import JobQueue
from ...jobs.queue.needs import CPU, GPU, GROUP
from ...jobs.queue.order import QueueOrder
from ...jobs.queue.plan import HOUR, RunnerSlots, queue_plan, read_slots
from ...jobs.queue.quotas import read_quotas
from ...jobs.queue.record import LOST
from ...jobs.queue.scheduler import Placement, SchedulePlan
from ...jobs.queue.slots import ComputeSlot, machine_slots
from ...jobs.queue.view import JobView, QueueView
from ...records import dataclass

HOURS = (1, 4, 24)  # that the plan can show
REPLAN = 5.0  # seconds after which forecasts are made again, though no job has changed
TICK = 10.0  # seconds by which the plan moves on: not each second, so that pages have nothing to change in between


@dataclass(frozen=True)
class QueueSnapshot:
    """The queue at one time."""

    jobs: tuple[JobView, ...] = ()
    waiting: tuple[JobView, ...] = ()  # in order, held ones too
    order: QueueOrder = field(default_factory=QueueOrder)
    plan: SchedulePlan = field(default_factory=SchedulePlan)
    offered: RunnerSlots = field(default_factory=RunnerSlots)
    planned_at: float = 0.0

    def slot_titles(self, names: Sequence[str]) -> str:
        """Where a job runs, in words."""
        known = {slot.name: slot.title for slot in self.offered.slots}
        return " and ".join(known.get(name, name) for name in names)


class QueueWatch:
    """Looks at the queue, and plans again when something has changed."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue, self._view = queue, QueueView(queue.folder)
        self._machine: RunnerSlots | None = None
        self._last = QueueSnapshot()
        self._seen: object = None

    def look(self) -> QueueSnapshot:
        """The queue now."""
        jobs, order, now = tuple(self._view.jobs()), self._view.order(), time.time()
        active = tuple(one for one in jobs if not one.state.has_ended or one.state.why == LOST)
        seen = (
            [(one.number, one.state, one.schedule) for one in active],
            order,
            len(jobs),
            read_quotas(self.queue.folder),
        )
        if seen != self._seen or now - self._last.planned_at >= REPLAN:
            self._seen = seen
            offered = read_slots(self.queue.folder) or self._this_machine()
            plan = queue_plan(self._view, active, offered, now, 24 * HOUR)
            waiting = tuple(self._view.waiting(list(active), order))
            self._last = QueueSnapshot(jobs, waiting, order, plan, offered, now)
        return self._last

    def _this_machine(self) -> RunnerSlots:
        """The slots of a runner that has not started yet."""
        if self._machine is None:
            self._machine = RunnerSlots(tuple(machine_slots()))
        return self._machine


# --- the plan as lanes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanBlock:
    """A job on a lane: its place in shares of the lane's width and height."""

    number: int
    name: str
    text: str  # what is below the name
    left: float
    width: float
    top: float
    height: float
    running: bool

    @property
    def colour(self) -> str:
        return colour_of(self.number)


@dataclass(frozen=True)
class PlanLane:
    """A slot over the next hours."""

    title: str
    text: str
    blocks: tuple[PlanBlock, ...]
    is_gpu: bool
    free: str  # what an empty lane says


def colour_of(number: int) -> str:
    """The colour of a job on all pages of the queue."""
    return f"s{1 + (number - 1) % 8}"


def ticks(now: float, hours: int) -> list[tuple[float, float]]:
    """Times on the axis of a plan, each with its share of the width; the first is now."""
    step = {1: 900, 4: 3600, 24: 4 * 3600}[hours]
    start = _tick(now)
    offset = -time.timezone if not time.localtime(start).tm_isdst else -time.altzone
    first = step - (start + offset) % step
    found = [(start, 0.0)]
    while first < hours * HOUR:
        if first > 0.12 * hours * HOUR:  # the first label needs room
            found.append((start + first, first / (hours * HOUR)))
        first += step
    return found


def plan_lanes(snapshot: QueueSnapshot, now: float, hours: int, uses: dict[str, str] | None = None) -> list[PlanLane]:
    """The lanes of the plan. `uses` are the words of what each GPU does now."""
    start = _tick(now)
    return [
        _lane(slot, snapshot.plan.placements, start, hours * HOUR, (uses or {}).get(slot.name, ""))
        for slot in snapshot.offered.slots
        if slot.kind != GROUP  # sweeps and cross-validations, whose trainings are on the others
    ]


def _tick(now: float) -> float:
    return now // TICK * TICK


def _lane(slot: ComputeSlot, placements: Sequence[Placement], start: float, span: float, use: str) -> PlanLane:
    here = sorted(
        (one for one in placements if slot.name in one.slots), key=lambda one: (not one.running, one.start, -one.end)
    )
    placed: list[tuple[Placement, float, float]] = []
    for one in here:
        height = _height(slot, one)
        placed.append((one, _offset(one, height, placed), height))
    blocks = tuple(
        _block(slot, one, top, height, start, span) for one, top, height in placed if one.start < start + span
    )
    busy = any(one.start <= start + TICK for one in here)
    if slot.kind == GPU:
        text = " · ".join(filter(None, [_bytes(slot.memory), use]))
        free = "Free. Trainings on a GPU run here."
    else:
        text = "busy" if busy else "free"
        free = f"Free. {'Trainings on the CPU' if slot.kind == CPU else 'Datasets, checks and exports'} run here."
    return PlanLane(slot.title, text, blocks, slot.kind == GPU, "" if blocks else free)


def _height(slot: ComputeSlot, one: Placement) -> float:
    """The share of a lane that a job takes: of a GPU its memory, but enough to be seen."""
    if slot.kind != GPU or not slot.memory:
        return 1.0
    return 1.0 if one.memory is None else min(1.0, max(0.09, one.memory / slot.memory))


def _offset(one: Placement, height: float, placed: Sequence[tuple[Placement, float, float]]) -> float:
    """The highest place on the lane that is free as long as the job runs."""
    there = [(top, top + size) for other, top, size in placed if other.start < one.end and one.start < other.end]
    for at in sorted([0.0, *(end for _, end in there)]):
        if at + height <= 1.0 + 1e-9 and all(end <= at + 1e-9 or top >= at + height - 1e-9 for top, end in there):
            return at
    return max(0.0, 1.0 - height)


def _block(slot: ComputeSlot, one: Placement, top: float, height: float, start: float, span: float) -> PlanBlock:
    left = 0.0 if one.running else max(0.0, (one.start - start) / span)
    right = min(1.0, (one.end - start) / span)
    name = one.job.name
    if len(one.slots) > 1:
        name += f" · {slot.title} of {len(one.slots)}"
    memory = "" if slot.kind != GPU else "all memory" if one.memory is None else _bytes(one.memory)
    after = f"until {time.strftime('%H:%M', time.localtime(one.end))}" if one.end > start + span else ""
    return PlanBlock(
        one.job.number, name, ", ".join(filter(None, [memory, after])), left, max(0.006, right - left), top, height, one.running
    )  # fmt: skip


def _bytes(count: float) -> str:
    return (
        f"{count / 1e9:.0f} GB"
        if count >= 20e9
        else f"{count / 1e9:.1f} GB"
        if count >= 1e8
        else f"{count / 1e6:.0f} MB"
    )


def needs_text(one: JobView) -> str:
    """What a job needs of the machine, in a few words."""
    needs = one.needs
    if needs.slot != GPU:
        return {CPU: "a CPU slot", GROUP: "nothing itself"}.get(needs.slot, "a task slot")
    what = (
        f"GPU {read_device_name(needs.device).number}"
        if needs.device
        else f"{needs.gpus} GPU{'s' if needs.gpus > 1 else ''}"
    )
    memory = "all memory" if needs.memory is None else _bytes(needs.memory)
    return f"{what}, {memory}{' each' if needs.gpus > 1 else ''}"
