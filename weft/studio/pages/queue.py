"""Queue: what runs, what waits and why, and what has ended."""

from __future__ import annotations

from nicegui import ui

from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.frame import frame
from ..ui.rendering import render
from .home import activity_cards


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/queue")
    def queue() -> None:
        with frame(studio, "Queue", "queue"):
            activity_cards(studio)
            studio.live.add("ended", lambda snapshot: _ended(studio, snapshot), "section", "card sect").props(
                'aria-label="Ended jobs"'
            )


def _ended(studio: Studio, snapshot: Snapshot) -> str:
    """The jobs that have ended, the last first."""
    return render("queue_ended.html", rows=snapshot.ended, base=studio.config.prefix)
