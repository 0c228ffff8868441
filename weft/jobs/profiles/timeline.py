"""What happened to a run, and when: from its own events and those of the jobs that worked on it."""

from __future__ import annotations

from pathlib import Path

from ...records import dataclass
from ..events import Event, replay
from ..queue.job_queue import JobQueue
from ..queue.record import JobRecord

TYPES = ("started", "branched", "resumed", "ended", "stopped", "result")


@dataclass(frozen=True)
class TimelineEntry:
    """A change of status: when, what, and why or how far."""

    time: float
    what: str
    detail: str = ""
    job: int | None = None


def timeline(folder: Path, queue: JobQueue | None = None) -> list[TimelineEntry]:
    """The entries of a run, the oldest first."""
    found = [_entry(event) for event in replay(folder) if event.type in TYPES]
    for job in queue.jobs() if queue is not None else ():
        if job.readable_settings and _is_of(job.state.run, folder):
            found += _of_job(job)
    return sorted(found, key=lambda one: one.time)


def _of_job(job: JobRecord) -> list[TimelineEntry]:
    """The states of a job; one that is recorded again, with the run folder, is listed once."""
    states = [event for event in job.events() if event.type == "state"]
    changes = [event for i, event in enumerate(states) if i == 0 or event["state"] != states[i - 1]["state"]]
    return [TimelineEntry(e.time, str(e["state"]), str(e.facts.get("why") or ""), job.number) for e in changes]


def _is_of(run: str | None, folder: Path) -> bool:
    return run is not None and Path(run).resolve() == folder.resolve()


def _entry(event: Event) -> TimelineEntry:
    facts = event.facts
    if event.type == "resumed":
        return TimelineEntry(event.time, "resumed", f"after epoch {facts.get('epoch')}, step {facts.get('steps')}")
    if event.type == "branched":
        source = Path(str(facts.get("source"))).name
        return TimelineEntry(event.time, "branched", f"from {source} after epoch {facts.get('epoch')}")
    if event.type == "ended":
        return TimelineEntry(event.time, "ended", f"{facts.get('why')}, after epoch {facts.get('epochs')}")
    if event.type == "result":
        split = facts.get("split")
        return TimelineEntry(event.time, "evaluated", f"on {split}" if split else "")
    return TimelineEntry(event.time, event.type, str(facts.get("why") or ""))
