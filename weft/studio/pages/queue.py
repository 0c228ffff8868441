"""Queue: the plan of the next hours, what runs, what waits and why, and what has ended."""

from __future__ import annotations

import time

from nicegui import ui

from ...device_names import gpu_name
from ...jobs.queue.needs import PRIORITIES
from ...jobs.queue.record import PAUSED, RUNNING, WAITING
from ..library.activity import HELD
from ..library.feed import Snapshot
from ..library.schedule import HOURS, colour_of, plan_lanes, ticks
from ..ui.context import Studio
from ..ui.frame import frame, studio_page
from ..ui.rendering import render


def add(studio: Studio) -> None:
    """Register the page."""
    base = studio.config.prefix

    @studio_page("/queue")
    def queue(hours: int = HOURS[0]) -> None:
        shown = hours if hours in HOURS else HOURS[0]
        ui.add_head_html(f'<script src="{base}/assets/queue.js" defer></script>')
        with frame(studio, "Queue", "queue", ("queue header", lambda snapshot: header(studio, snapshot))):
            studio.live.add(f"plan {shown}", lambda snapshot: plan(studio, snapshot, shown), "section", "card").props(
                'aria-label="Plan"'
            )
            studio.live.add("queue running", lambda s: running(studio, s), "section", "sect").props(
                'aria-label="Running"'
            )
            studio.live.add("queue waiting", lambda s: waiting(studio, s), "section", "card sect").props(
                'aria-label="Waiting"'
            )
            studio.live.add("queue held", lambda s: held(studio, s), "section", "sect").props('aria-label="Held"')
            studio.live.add("ended", lambda s: _ended(studio, s), "section", "card sect").props(
                'aria-label="Ended jobs"'
            )
            ui.html(
                "The queue survives a restart: running jobs go on, or resume exactly from their last checkpoint.",
                sanitize=False, tag="p",
            ).classes("tiny faint next")  # fmt: skip


def header(studio: Studio, snapshot: Snapshot) -> str:
    """Title, counts, and the queue's own buttons."""
    return render(
        "queue_header.html", running=snapshot.count(RUNNING), waiting=snapshot.count(WAITING), held=snapshot.count(HELD),
        paused=snapshot.queue.order.paused, runs_queue=snapshot.runs_queue, base=studio.config.prefix,
    )  # fmt: skip


def plan(studio: Studio, snapshot: Snapshot, hours: int) -> str:
    """The lanes of the next hours."""
    now = time.time()
    uses = {gpu_name(i): f"{100 * gpu.use:.0f} %" for i, gpu in enumerate(snapshot.load.gpus)}
    return render(
        "queue_plan.html", lanes=plan_lanes(snapshot.queue, now, hours, uses), ticks=ticks(now, hours), hours=hours, all_hours=HOURS,
        base=studio.config.prefix,
    )  # fmt: skip


def running(studio: Studio, snapshot: Snapshot) -> str:
    """A card for each job that runs."""
    jobs = [one for one in snapshot.activities if one.state == RUNNING]
    return render("queue_running.html", jobs=jobs, colour=colour_of, base=studio.config.prefix)


def waiting(studio: Studio, snapshot: Snapshot) -> str:
    """The jobs that wait, in their order."""
    jobs = [one for one in snapshot.activities if one.state == WAITING]
    return render(
        "queue_waiting.html",
        jobs=jobs,
        colour=colour_of,
        priorities=tuple(reversed(PRIORITIES)),
        base=studio.config.prefix,
    )


def held(studio: Studio, snapshot: Snapshot) -> str:
    """The jobs that wait for a person."""
    jobs = [one for one in snapshot.activities if one.state in (HELD, PAUSED)]
    return render("queue_held.html", jobs=jobs, base=studio.config.prefix)


def _ended(studio: Studio, snapshot: Snapshot) -> str:
    """The jobs that have ended, the last first."""
    return render("queue_ended.html", rows=snapshot.ended, base=studio.config.prefix)
