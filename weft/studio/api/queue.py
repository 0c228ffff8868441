"""The queue as a whole: what runs where, what waits and why, the plan; pause, hold all."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from ...errors import UserError
from ...jobs.queue.record import WAITING
from ..access import current_user
from ..library.activity import HELD
from ..ui.context import Studio


def router(studio: Studio) -> APIRouter:
    """The routes below /queue."""
    routes = APIRouter(prefix="/queue", tags=["queue"])

    @routes.get("")
    def queue() -> dict[str, Any]:
        """What runs where, what waits and why, and the plan of the next 24 hours."""
        seen, shown = studio.feed.snapshot.queue, studio.feed.snapshot.activities
        return {
            "paused": seen.order.paused,
            "slots": [{"name": slot.name, "title": slot.title, "memory": slot.memory} for slot in seen.offered.slots],
            "waiting": [
                {"number": one.job, "name": one.name, "why": one.why, "starts": one.starts, "priority": one.priority, "held": one.state == HELD}
                for one in shown if one.state in (WAITING, HELD)
            ],
            "plan": [
                {"number": one.job.number, "name": one.job.name, "slots": one.slots, "start": one.start, "end": one.end, "memory": one.memory, "running": one.running}
                for one in seen.plan.placements
            ],
        }  # fmt: skip

    @routes.post("/pause")
    def pause() -> dict[str, Any]:
        """Start no more jobs; running ones continue."""
        studio.queue.pause_all()
        studio.feed.refresh_soon()
        return {"paused": True, "message": "No job starts until the queue is resumed. Running ones go on."}

    @routes.post("/resume")
    def resume() -> dict[str, Any]:
        """Start jobs again."""
        studio.queue.resume_all()
        studio.feed.refresh_soon()
        return {"paused": False}

    @routes.post("/hold")
    def hold(request: Request) -> dict[str, Any]:
        """Hold all jobs that wait."""
        return _each(studio, WAITING, lambda job: studio.queue.hold(job, current_user(request).name))

    @routes.post("/release")
    def release() -> dict[str, Any]:
        """Release all jobs that are held."""
        return _each(studio, HELD, studio.queue.release)

    return routes


def _each(studio: Studio, state: str, change: Any) -> dict[str, Any]:
    numbers = []
    for one in studio.feed.look().activities:
        if one.state == state and one.job is not None:
            try:
                change(studio.queue.job(one.job))
                numbers.append(one.job)
            except UserError:
                continue  # it has just started
    studio.feed.refresh_soon()
    return {"numbers": numbers}
