"""Jobs: list, submit, pause, resume, stop, hold, move, retry."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict

from ...jobs.queue.record import JobRecord
from ...jobs.queue.remedies import remedy
from ...jobs.queue.schedule import read_schedule
from ...jobs.queue.submission import retry as retry_job
from ..access import current_user
from ..ui.context import Studio
from .models import JobFacts


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
        return {**job_facts(job), **({"message": message} if message else {})}

    @routes.get("", response_model=list[JobFacts])
    def jobs() -> list[dict[str, Any]]:
        """All jobs of the queue, the oldest first."""
        return [job_facts(job) for job in queue.jobs()]

    @routes.get("/{number}", response_model=JobFacts)
    def job(number: int) -> dict[str, Any]:
        """One job."""
        return job_facts(queue.job(number))

    @routes.post("/{number}/pause", response_model=JobFacts)
    def pause(number: int) -> dict[str, Any]:
        """Stop a job with a checkpoint; it can be resumed."""
        found = queue.job(number)
        queue.pause(found)
        return changed(found)

    @routes.post("/{number}/resume", response_model=JobFacts)
    def resume(number: int) -> dict[str, Any]:
        """Put a job that was paused, stopped or has failed into the queue again."""
        return changed(queue.resume(queue.job(number)))

    @routes.post("/{number}/stop", response_model=JobFacts)
    def stop(number: int) -> dict[str, Any]:
        """Stop a job for good, with a checkpoint."""
        found = queue.job(number)
        queue.cancel(found)
        return changed(found)

    @routes.post("/{number}/hold", response_model=JobFacts)
    def hold(number: int, request: Request) -> dict[str, Any]:
        """Keep a waiting job from starting."""
        found = queue.job(number)
        queue.hold(found, current_user(request).name)
        return changed(found)

    @routes.post("/{number}/release", response_model=JobFacts)
    def release(number: int) -> dict[str, Any]:
        """Let a job that is held start when its turn comes."""
        found = queue.job(number)
        queue.release(found)
        return changed(found)

    @routes.post("/{number}/priority", response_model=JobFacts)
    def priority(number: int, wanted: JobPriority) -> dict[str, Any]:
        """Change the priority of a waiting job."""
        found = queue.job(number)
        queue.prioritize(found, wanted.priority)
        return changed(found)

    @routes.post("/{number}/move", response_model=JobFacts)
    def move(number: int, wanted: JobMove) -> dict[str, Any]:
        """Move a waiting job in the queue."""
        found = queue.job(number)
        queue.move(found, None if wanted.before is None else queue.job(wanted.before), wanted.by)
        return changed(found)

    @routes.post("/{number}/retry", response_model=JobFacts)
    def retry(number: int, wanted: JobRetry, request: Request) -> dict[str, Any]:
        """Submit a training that has ended again, with some settings changed."""
        new = retry_job(queue, queue.job(number), wanted.settings, current_user(request).name)
        return changed(new, f"Job {new.number} waits for its turn.")

    return routes


def job_facts(job: JobRecord) -> dict[str, Any]:
    """A job as the API describes it."""
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
