"""Jobs: list, pause, resume, stop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from ...jobs.record import JobRecord
from ..ui.context import Studio


def router(studio: Studio) -> APIRouter:
    """The routes below /jobs."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"])

    def changed(job: JobRecord) -> dict[str, Any]:
        studio.feed.refresh_soon()
        return _facts(job)

    @routes.get("")
    def jobs() -> list[dict[str, Any]]:
        """All jobs of the queue, the oldest first."""
        return [_facts(job) for job in studio.queue.jobs()]

    @routes.get("/{number}")
    def job(number: int) -> dict[str, Any]:
        """One job."""
        return _facts(studio.queue.job(number))

    @routes.post("/{number}/pause")
    def pause(number: int) -> dict[str, Any]:
        """Stop a job with a checkpoint; it can be resumed."""
        found = studio.queue.job(number)
        studio.queue.pause(found)
        return changed(found)

    @routes.post("/{number}/resume")
    def resume(number: int) -> dict[str, Any]:
        """Put a job that was paused, stopped or has failed into the queue again."""
        return changed(studio.queue.resume(studio.queue.job(number)))

    @routes.post("/{number}/stop")
    def stop(number: int) -> dict[str, Any]:
        """Stop a job for good, with a checkpoint."""
        found = studio.queue.job(number)
        studio.queue.cancel(found)
        return changed(found)

    return routes


def _facts(job: JobRecord) -> dict[str, Any]:
    return {"number": job.number, **asdict(job.state), "settings": job.settings}
