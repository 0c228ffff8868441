"""Home: what runs and waits, the machine, and the table of runs."""

from __future__ import annotations

from nicegui import ui

from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.frame import frame
from ..ui.rendering import render
from ..ui.run_table import RunTable


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/")
    def home() -> None:
        with frame(studio, "Home", "home"):
            activity_cards(studio)
            with ui.element("section").classes("card sect").props('aria-label="Runs"'):
                ui.html("<h2>Runs</h2>", sanitize=False).classes("chead").style("padding-bottom: 0")
                RunTable(studio)


def activity_cards(studio: Studio) -> None:
    """What runs and waits, and beside it the machine."""
    with ui.element("div").classes("cols side-r"):
        studio.live.add("jobs", lambda snapshot: jobs(studio, snapshot), "section", "card").props('aria-label="Jobs"')
        shown = studio.live.add("machine", lambda snapshot: machine(studio, snapshot), "section", "card")
        shown.props('aria-label="Machine"')


def jobs(studio: Studio, snapshot: Snapshot) -> str:
    """The card of running and waiting jobs."""
    return render(
        "home_jobs.html", activities=snapshot.activities, running=snapshot.count("running"), waiting=snapshot.count("waiting"),
        failed=snapshot.count("failed"), base=studio.config.prefix,
    )  # fmt: skip


def machine(studio: Studio, snapshot: Snapshot) -> str:
    """The card of the machine."""
    return render("home_machine.html", load=snapshot.load, history=studio.feed.machine.history)
