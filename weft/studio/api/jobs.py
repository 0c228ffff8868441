"""Jobs: list, pause, resume, stop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from ...jobs.record import JobRecord
from ..ui.context import Studio
from .models import JobFacts


def router(studio: Studio) -> APIRouter:
    """The routes below /jobs."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"])

    def changed(job: JobRecord) -> dict[str, Any]:
        studio.feed.refresh_soon()
        return job_facts(job)

    @routes.get("", response_model=list[JobFacts])
    def jobs() -> list[dict[str, Any]]:
        """All jobs of the queue, the oldest first."""
        return [job_facts(job) for job in studio.queue.jobs()]

    @routes.get("/{number}", response_model=JobFacts)
    def job(number: int) -> dict[str, Any]:
        """One job."""
        return job_facts(studio.queue.job(number))

    @routes.post("/{number}/pause", response_model=JobFacts)
    def pause(number: int) -> dict[str, Any]:
        """Stop a job with a checkpoint; it can be resumed."""
        found = studio.queue.job(number)
        studio.queue.pause(found)
        return changed(found)

    @routes.post("/{number}/resume", response_model=JobFacts)
    def resume(number: int) -> dict[str, Any]:
        """Put a job that was paused, stopped or has failed into the queue again."""
        return changed(studio.queue.resume(studio.queue.job(number)))

    @routes.post("/{number}/stop", response_model=JobFacts)
    def stop(number: int) -> dict[str, Any]:
        """Stop a job for good, with a checkpoint."""
        found = studio.queue.job(number)
        studio.queue.cancel(found)
        return changed(found)

    return routes


def job_facts(job: JobRecord) -> dict[str, Any]:
    """A job as the API describes it."""
    return {"number": job.number, **asdict(job.state), "settings": job.settings}
