"""Decides which jobs start, where, and when the others will: first come first served by priority, with packing, reservation and backfilling.

Nothing here looks at the disk or the clock: `plan` is a function of what runs, what waits, the slots and the time, so it is also what the pages
show of the next hours, and what tests simulate.

- Jobs are taken in the order of the queue. One that fits now starts now; small jobs share a GPU as long as their memory forecasts fit into it.
- The first GPU job that does not fit gets a reservation: the GPUs on which it can start earliest, at the time when what runs there is forecast to
  end. Jobs behind it start on these GPUs only if they fit beside it, or are forecast to end before (EASY backfilling). So it never starves.
- Forecasts may be wrong. A job that has waited longer than PATIENCE lets nothing that needs its room pass any more, whatever the forecast says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field

from ...records import dataclass
from .needs import GPU, GROUP, JobNeeds
from .quotas import JobQuota
from .slots import ComputeSlot

PATIENCE = 1800.0  # seconds that others may pass a job with a reservation
UNKNOWN = 1800.0  # seconds that a job is assumed to take whose duration is unknown, in the plan
OVERDUE = 60.0  # seconds that a job is assumed to go on for after its forecast end
MOST_ROUNDS = 400  # of a simulation; what starts later has no forecast


@dataclass(frozen=True)
class QueuedJob:
    """What the scheduler knows of a job that runs or waits."""

    number: int
    name: str
    needs: JobNeeds
    owner: str = ""
    since: float = 0.0  # when it began to wait
    slots: tuple[str, ...] = ()  # where it runs; where it ran before, if it waits
    ends: float | None = None  # forecast end, if it runs


@dataclass(frozen=True)
class Placement:
    """A job on its slots, from start to end. `memory` is what it may use of each GPU; None is all of it."""

    job: QueuedJob
    slots: tuple[str, ...]
    start: float
    end: float
    memory: int | None = 0
    running: bool = False


@dataclass(frozen=True)
class SchedulePlan:
    """What runs and will run where, and why each waiting job waits. The jobs to start now are `starting`."""

    placements: tuple[Placement, ...] = ()
    starting: tuple[Placement, ...] = ()
    reasons: Mapping[int, str] = field(default_factory=dict)
    starts: Mapping[int, float] = field(default_factory=dict)  # forecast start of waiting jobs


def plan(
    slots: Sequence[ComputeSlot], running: Sequence[QueuedJob], waiting: Sequence[QueuedJob], now: float,
    horizon: float = 0.0, per_owner: int | None = None, quotas: Mapping[str, JobQuota] | None = None,
) -> SchedulePlan:  # fmt: skip
    """The plan for jobs that wait in this order; what happens until now + horizon is simulated with the forecasts."""
    state = _Machine(slots, running, now, per_owner, quotas or {})
    left, reasons = list(waiting), dict[int, str]()
    starting: list[Placement] = []
    for round_ in range(MOST_ROUNDS):
        started, why = state.start(left)
        if round_ == 0:
            starting, reasons = started, why
        taken = {one.job.number for one in started}
        left = [job for job in left if job.number not in taken]
        following = state.next_end()
        if not left or following is None or following > now + horizon:
            break
        state.advance(following)
    later = {one.job.number: one.start for one in state.log if not one.running and one.start > now}
    return SchedulePlan(tuple(state.log), tuple(starting), reasons, later)


@dataclass(frozen=True)
class _Reservation:
    """Room that is kept for a job that does not fit yet."""

    job: QueuedJob
    slots: frozenset[str]
    time: float
    memory: int | None
    patient: bool  # whether jobs that end before may pass it


class _Machine:
    """What runs at one time of the simulation."""

    def __init__(
        self, slots: Sequence[ComputeSlot], running: Sequence[QueuedJob], now: float, per_owner: int | None,
        quotas: Mapping[str, JobQuota],
    ) -> None:  # fmt: skip
        self.slots = {slot.name: slot for slot in slots}
        self.now, self.per_owner, self.quotas = now, per_owner, quotas
        self.active = [self._running(job) for job in running]
        self.log = list(self.active)

    def _running(self, job: QueuedJob) -> Placement:
        end = self.now + UNKNOWN if job.ends is None else max(job.ends, self.now + OVERDUE)
        return Placement(job, job.slots, self.now, end, self._memory(job), running=True)

    def _memory(self, job: QueuedJob) -> int | None:
        """What a job may use of each GPU; None is all of it. More than any GPU has is all of the largest."""
        needed = job.needs.memory
        if job.needs.slot != GPU:
            return 0
        return None if needed is None else min(needed, max((one.memory for one in self._candidates(job)), default=0))

    def _candidates(self, job: QueuedJob) -> list[ComputeSlot]:
        needs = job.needs
        return [slot for slot in self.slots.values() if slot.kind == needs.slot and needs.device in (None, slot.name)]

    # --- one round --------------------------------------------------------------------------------------------------------------

    def start(self, waiting: Sequence[QueuedJob]) -> tuple[list[Placement], dict[int, str]]:
        """Start what can start now, in order; why the others wait."""
        started: list[Placement] = []
        reasons: dict[int, str] = {}
        kept: _Reservation | None = None
        pack = any(job.needs.slot == GPU and (job.needs.gpus > 1 or job.needs.memory is None) for job in waiting)
        for job in waiting:
            full = self._over_limit(job)
            if full:
                reasons[job.number] = full
                continue
            chosen = self._fitting(job, self.active, kept, pack)
            if chosen is not None:
                seconds = UNKNOWN if job.needs.seconds is None else job.needs.seconds
                made = Placement(job, chosen, self.now, self.now + seconds, self._memory(job))
                self.active.append(made)
                self.log.append(made)
                started.append(made)
                continue
            reasons[job.number] = self._why(job, kept)
            if kept is None and job.needs.slot == GPU:
                kept = self._reserve(job)
        return started, reasons

    def _over_limit(self, job: QueuedJob) -> str:
        """Why the owner of a job may run no further one; nothing if they may."""
        if not job.owner or job.needs.slot == GROUP:
            return ""
        theirs = [one.job for one in self.active if one.job.owner == job.owner and one.job.needs.slot != GROUP]
        if self.per_owner is not None and len(theirs) >= self.per_owner:
            return f"{job.owner} runs {self.per_owner} jobs already, the most for one person"
        slot, quota = job.needs.slot, self.quotas.get(job.owner, JobQuota())
        most = quota.most(slot)
        full = most is not None and sum(one.needs.slot == slot for one in theirs) >= most
        return quota.why_full(job.owner, slot) if full else ""

    def _fitting(
        self, job: QueuedJob, active: Sequence[Placement], kept: _Reservation | None, pack: bool
    ) -> tuple[str, ...] | None:
        """The slots on which a job can start now; None if there are too few.

        The slot it ran on before comes first, since it continues there with the same bits. Jobs spread over GPUs, unless one waits that
        needs whole GPUs: then they fill those that are in use.
        """
        memory = self._memory(job)
        fits = [
            slot
            for slot in self._candidates(job)
            if self._has_room(slot, memory, active) and (kept is None or self._passes(job, slot, memory, kept))
        ]
        fits = fits[self._strays(job.needs.slot, active) :]
        wanted = job.needs.gpus if job.needs.slot == GPU else 1
        if len(fits) < wanted:
            return None
        sign = 1 if pack else -1
        fits.sort(key=lambda slot: (slot.name not in job.slots, sign * self._free(slot, active)))
        return tuple(slot.name for slot in fits[:wanted])

    def _strays(self, kind: str, active: Sequence[Placement]) -> int:
        """Jobs on slots of an earlier runner that had more of them: they take the place of one each."""
        return sum(one.job.needs.slot == kind and not self.slots.keys() & set(one.slots) for one in active)

    def _has_room(self, slot: ComputeSlot, memory: int | None, active: Sequence[Placement]) -> bool:
        there = sum(slot.name in one.slots for one in active)
        return there < slot.most_jobs and _on(slot, memory) <= self._free(slot, active)

    def _free(self, slot: ComputeSlot, active: Sequence[Placement]) -> int:
        return slot.memory - sum(_on(slot, one.memory) for one in active if slot.name in one.slots)

    # --- reservation ------------------------------------------------------------------------------------------------------------

    def _reserve(self, job: QueuedJob) -> _Reservation | None:
        """The earliest place of a job, if nothing else started: what runs is taken away in the order in which it ends."""
        active = sorted(self.active, key=lambda one: one.end)
        while active:
            when = active[0].end
            active = [one for one in active if one.end > when]
            chosen = self._fitting(job, active, None, False)
            if chosen is not None:
                patient = self.now - job.since < PATIENCE
                return _Reservation(job, frozenset(chosen), when, self._memory(job), patient)
        return None  # this machine never has room for it: nobody waits for it

    def _passes(self, job: QueuedJob, slot: ComputeSlot, memory: int | None, kept: _Reservation) -> bool:
        """Whether a job on this slot leaves the reservation its room."""
        if slot.name not in kept.slots:
            return True
        ends_before = job.needs.seconds is not None and self.now + job.needs.seconds <= kept.time
        if kept.patient and ends_before:
            return True
        still_there = [one for one in self.active if one.end > kept.time]
        beside = sum(slot.name in one.slots for one in still_there) + 1 < slot.most_jobs
        return beside and _on(slot, memory) + _on(slot, kept.memory) <= self._free(slot, still_there)

    # --- reasons ----------------------------------------------------------------------------------------------------------------

    def _why(self, job: QueuedJob, kept: _Reservation | None) -> str:
        """Why a job does not start now."""
        needs, candidates = job.needs, self._candidates(job)
        wanted = needs.gpus if needs.slot == GPU else 1
        if len(candidates) < wanted:
            return _missing(job, [slot for slot in self.slots.values() if slot.kind == GPU])
        if kept is not None and self._fitting(job, self.active, None, False) is not None:
            return f"Behind {kept.job.name}, which has the next place on {self._titles(sorted(kept.slots))}"
        if wanted > 1:
            return f"Waits for {wanted} GPUs: {', '.join(self._occupation(slot) for slot in candidates)}"
        if needs.slot == GPU:
            best = max(candidates, key=lambda slot: self._free(slot, self.active))
            memory = self._memory(job)
            return f"Needs {'a whole GPU' if memory is None else _bytes(memory)}: {self._room(best)}"
        first = min((one for one in self.active if one.job.needs.slot == needs.slot), key=lambda one: one.end)
        if len(candidates) == 1:
            return f"{candidates[0].title} is busy with {first.job.name}"
        return f"All {len(candidates)} slots are busy; {first.job.name} is the first to end"

    def _occupation(self, slot: ComputeSlot) -> str:
        there = [one for one in self.active if slot.name in one.slots]
        if not there:
            return f"{slot.title} free"
        last = max(there, key=lambda one: one.end)
        return f"{slot.title} busy until about {clock(last.end)} with {last.job.name}"

    def _room(self, slot: ComputeSlot) -> str:
        there = [one for one in self.active if slot.name in one.slots]
        if not there:
            return f"{slot.title} is kept free"
        first = min(there, key=lambda one: one.end)
        if len(there) >= slot.most_jobs:
            return f"{slot.title} has {len(there)} jobs until {first.job.name} ends"
        return f"{slot.title} has {_bytes(self._free(slot, self.active))} free until {first.job.name} ends"

    def _titles(self, names: Sequence[str]) -> str:
        return " and ".join(self.slots[name].title for name in names)

    # --- time -------------------------------------------------------------------------------------------------------------------

    def next_end(self) -> float | None:
        return min((one.end for one in self.active), default=None)

    def advance(self, now: float) -> None:
        self.now = now
        self.active = [one for one in self.active if one.end > now]


def _on(slot: ComputeSlot, memory: int | None) -> int:
    return slot.memory if memory is None else memory


def clock(when: float) -> str:
    """The time of day."""
    return time.strftime("%H:%M", time.localtime(when))


def _missing(job: QueuedJob, gpus: Sequence[ComputeSlot]) -> str:
    """Why a job cannot start on this machine, whatever ends: what it was submitted for has gone."""
    needs = job.needs
    if needs.slot != GPU:
        return "This runner has no slot for it"
    have = f"it has {', '.join(slot.name for slot in gpus)}" if gpus else "it has no GPU"
    if needs.device is not None:
        return f"Waits for {needs.device}, which this machine does not have: {have}. Submit it again for another device"
    wanted = f"{needs.gpus} GPUs" if needs.gpus > 1 else "a GPU"
    return f"Waits for {wanted}, which this machine does not have: {have}. Submit it again for another device"


def _bytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
