"""What happens, as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse

from ..ui.context import Studio

_TEXT = """
Events have a type and JSON facts:

- `ready`: the stream begins; what happens from now on is sent
- `reset`: events were lost (the client was away too long, or too slow); read runs and jobs again
- `run`: a run has changed: run (its id), status, epochs, best and last values; status `deleted` when it is gone
- `job`: a job has changed its state: job, state, why, run
- `progress`: job, run, share (0 to 1) and, of a training, epoch, step and time left

A comment is sent each 15 seconds without an event. `Last-Event-ID` continues after that event.
"""


def router(studio: Studio) -> APIRouter:
    """The route /events."""
    routes = APIRouter(prefix="/events", tags=["events"])

    @routes.get(
        "",
        response_class=StreamingResponse,
        description="Server-sent events of runs, jobs and progress." + _TEXT,
        responses={200: {"content": {"text/event-stream": {}}, "description": "the events, until one side hangs up"}},
    )
    async def events(
        run: Annotated[str | None, Query(description="only events of this run")] = None,
        last_event_id: Annotated[str, Header(description="id of the last event that was received")] = "",
    ) -> StreamingResponse:
        """Follow runs and jobs as server-sent events."""
        return StreamingResponse(
            studio.events.follow(last_event_id, run),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    return routes
