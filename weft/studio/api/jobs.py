"""Jobs: list, submit, pause, resume, stop, hold, move, retry."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from ...jobs.job_schedule import read_schedule
from ...jobs.record import JobRecord
from ...jobs.remedies import remedy
from ...jobs.submission import retry as retry_job
from ...jobs.submission import submit
from ..ui.context import Studio
from .owner import owner_of


class NewJob(BaseModel):
    """A training to add to the queue: settings of `weft train`."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any]
    priority: str = "normal"
    gpus: int = 1


class JobPriority(BaseModel):
    """low, normal or high."""

    priority: str


class JobMove(BaseModel):
    """Where a waiting job goes: before another, some places down (up, if negative), or to the end."""

    model_config = ConfigDict(extra="forbid")
    before: int | None = None
    by: int | None = None


class JobRetry(BaseModel):
    """Settings to change."""

    settings: dict[str, Any] = {}


def router(studio: Studio) -> APIRouter:
    """The routes below /jobs."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"])
    queue = studio.queue

    def changed(job: JobRecord, message: str = "") -> dict[str, Any]:
        studio.feed.refresh_soon()
        return {**_facts(job), **({"message": message} if message else {})}

    @routes.get("")
    def jobs() -> list[dict[str, Any]]:
        """All jobs of the queue, the oldest first."""
        return [_facts(job) for job in queue.jobs()]

    @routes.post("")
    def add(new: NewJob, request: Request) -> dict[str, Any]:
        """Check the settings of a training and add it to the queue."""
        return changed(submit(queue, new.settings, owner_of(request), new.priority, new.gpus))

    @routes.get("/{number}")
    def job(number: int) -> dict[str, Any]:
        """One job."""
        return _facts(queue.job(number))

    @routes.post("/{number}/pause")
    def pause(number: int) -> dict[str, Any]:
        """Stop a job with a checkpoint; it can be resumed."""
        found = queue.job(number)
        queue.pause(found)
        return changed(found)

    @routes.post("/{number}/resume")
    def resume(number: int) -> dict[str, Any]:
        """Put a job that was paused, stopped or has failed into the queue again."""
        return changed(queue.resume(queue.job(number)))

    @routes.post("/{number}/stop")
    def stop(number: int) -> dict[str, Any]:
        """Stop a job for good, with a checkpoint."""
        found = queue.job(number)
        queue.cancel(found)
        return changed(found)

    @routes.post("/{number}/hold")
    def hold(number: int, request: Request) -> dict[str, Any]:
        """Keep a waiting job from starting."""
        found = queue.job(number)
        queue.hold(found, owner_of(request))
        return changed(found)

    @routes.post("/{number}/release")
    def release(number: int) -> dict[str, Any]:
        """Let a job that is held start when its turn comes."""
        found = queue.job(number)
        queue.release(found)
        return changed(found)

    @routes.post("/{number}/priority")
    def priority(number: int, wanted: JobPriority) -> dict[str, Any]:
        """Change the priority of a waiting job."""
        found = queue.job(number)
        queue.prioritize(found, wanted.priority)
        return changed(found)

    @routes.post("/{number}/move")
    def move(number: int, wanted: JobMove) -> dict[str, Any]:
        """Move a waiting job in the queue."""
        found = queue.job(number)
        queue.move(found, None if wanted.before is None else queue.job(wanted.before), wanted.by)
        return changed(found)

    @routes.post("/{number}/retry")
    def retry(number: int, wanted: JobRetry) -> dict[str, Any]:
        """Submit a training that has ended again, with some settings changed."""
        new = retry_job(queue, queue.job(number), wanted.settings)
        return changed(new, f"Job {new.number} waits for its turn.")

    return routes


def _facts(job: JobRecord) -> dict[str, Any]:
    state, submitted, schedule = job.state, _submitted(job), read_schedule(job.folder)
    kind, settings = str(submitted.get("kind", "train")), submitted.get("settings") or {}
    help_ = remedy(kind, state.why, settings) if state.state == "failed" else None
    return {
        "number": job.number, **asdict(state), "kind": kind, "settings": settings, "owner": submitted.get("owner") or "",
        "needs": submitted.get("needs"), "priority": schedule.priority_name, "held": schedule.held, "slots": list(schedule.slots),
        "remedy": None if help_ is None else asdict(help_),
    }  # fmt: skip


def _submitted(job: JobRecord) -> dict[str, Any]:
    found = job.readable_settings  # of a damaged job: none
    return job.submitted() if found else {}
