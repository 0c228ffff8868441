"""The plan of a queue on disk: its jobs as the scheduler sees them, with the memory that was measured and the time that is left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from ...device_names import gpu_name
from ...io.files import replace_file
from ...records import dataclass
from ..events import latest
from .history import MARGIN
from .needs import GPU, JobNeeds
from .quotas import read_quotas
from .scheduler import QueuedJob, SchedulePlan, plan
from .slots import ComputeSlot
from .view import JobView, QueueView

RUNNER_FILE = "runner.json"  # the slots of the runner, so that every process can tell its plan
HOUR = 3600.0


@dataclass(frozen=True)
class RunnerSlots:
    """What a runner has to offer."""

    slots: tuple[ComputeSlot, ...] = ()
    per_owner: int | None = None


def write_slots(folder: Path, offered: RunnerSlots) -> None:
    """Record the slots of a runner that starts."""
    replace_file(folder / RUNNER_FILE, [json.dumps(asdict(offered)).encode()], "jobs")


def read_slots(folder: Path) -> RunnerSlots | None:
    """The slots of the last runner; None if there was none, or its file is damaged."""
    try:
        found = json.loads((folder / RUNNER_FILE).read_text("utf-8"))
        slots = tuple(ComputeSlot(str(one["name"]), str(one["kind"]), int(one["memory"])) for one in found["slots"])
        per_owner = found["per_owner"]
        return RunnerSlots(slots, None if per_owner is None else int(per_owner))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def queue_plan(
    view: QueueView, jobs: Sequence[JobView], offered: RunnerSlots, now: float, horizon: float = 0.0,
    starting: Sequence[int] = (),
) -> SchedulePlan:  # fmt: skip
    """The plan for these jobs. `starting` are the numbers of jobs whose processes have been started but do not run yet."""
    order = view.order()
    running = [one for one in jobs if one.is_running or one.number in starting]
    taken = {one.number for one in running}
    waiting = [one for one in view.waiting(list(jobs), order) if one.number not in taken]
    free = [one for one in waiting if not one.schedule.held]
    made = plan(
        offered.slots, [_running(one, now) for one in running], [] if order.paused else [_waiting(one) for one in free],
        now, horizon, offered.per_owner, read_quotas(view.folder),
    )  # fmt: skip
    held = {one.number: "Held" for one in waiting if one.schedule.held}
    paused = {one.number: "The queue is paused" for one in free} if order.paused else {}
    return replace(made, reasons={**made.reasons, **paused, **held})


def _waiting(one: JobView) -> QueuedJob:
    return QueuedJob(one.number, one.title, one.needs, one.owner, one.state.time, one.schedule.slots)


def _running(one: JobView, now: float) -> QueuedJob:
    left = seconds_left(one, now)
    slots = one.schedule.slots or _usual_slots(one.needs)
    return QueuedJob(
        one.number,
        one.title,
        _measured(one, now),
        one.owner,
        one.state.time,
        slots,
        None if left is None else now + left,
    )


def _usual_slots(needs: JobNeeds) -> tuple[str, ...]:
    """Where a job runs whose slots were not recorded."""
    if needs.slot == GPU:
        return tuple(needs.device or gpu_name(i) for i in range(needs.gpus))
    return (f"{needs.slot}:0",)


def _measured(one: JobView, now: float) -> JobNeeds:
    """The needs of a running job: what it was seen to use counts once its first epoch is over, and before that if it is more."""
    seen, forecast = one.schedule.memory, one.needs.memory
    if seen is None or one.needs.slot != GPU:
        return one.needs
    at = latest(one.record.folder, "progress")
    settled = at is not None and int(at.facts.get("epoch") or 0) > 1
    used = int(MARGIN * seen)
    return replace(one.needs, memory=used if settled or forecast is None else max(used, forecast))


def progress_share(one: JobView) -> tuple[float, float] | None:
    """How far a job is, from 0 to 1, and when it was there."""
    event = latest(one.record.folder, "progress")
    if event is None or event.time < (one.schedule.started or 0.0):
        return None
    facts = event.facts
    try:
        within = float(facts["done"]) / float(facts["total"])
        if facts.get("epochs"):
            within = (int(facts["epoch"]) - 1 + within) / int(facts["epochs"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return min(1.0, max(0.0, within)), event.time


def seconds_left(one: JobView, now: float) -> float | None:
    """How long a running job still takes: by the pace of this attempt, else by the forecast; None if nothing is known."""
    at, started, forecast = progress_share(one), one.schedule.started, one.needs.seconds
    if at is not None and at[0] > 0.02 and started is not None and one.schedule.losses == 0:
        share, when = at
        return max(0.0, (when - started) / share * (1 - share) - (now - when))
    if forecast is None:
        return None
    done = forecast * at[0] if at is not None else now - (started or now)
    return max(0.0, forecast - done)
