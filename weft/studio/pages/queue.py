"""Queue: what runs, what waits and why, and what has ended."""

from __future__ import annotations

from nicegui import ui

from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.frame import frame
from ..ui.rendering import render
from .home import jobs, machine

LAST = 50  # jobs that have ended and are listed


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/queue")
    def queue() -> None:
        with frame(studio, "Queue", "queue"):
            with ui.element("div").classes("cols side-r"):
                studio.live.add("jobs", lambda snapshot: jobs(studio, snapshot), "section", "card").props(
                    'aria-label="Jobs"'
                )
                studio.live.add("machine", lambda snapshot: machine(studio, snapshot), "section", "card").props(
                    'aria-label="Machine"'
                )
            studio.live.add("ended", lambda snapshot: _ended(studio, snapshot), "section", "card sect").props(
                'aria-label="Ended jobs"'
            )


def _ended(studio: Studio, snapshot: Snapshot) -> str:
    """The jobs that have ended, the last first."""
    ended = [(job, state) for job in reversed(studio.queue.jobs()) if (state := job.state).has_ended]
    rows = [(job.number, state, job.settings) for job, state in ended[:LAST]]
    return render("queue_ended.html", rows=rows, base=studio.config.prefix, runs=str(studio.index.root))
