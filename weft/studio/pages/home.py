"""Home: what runs and waits, the machine, and the tables of runs, datasets and networks."""

from __future__ import annotations

import asyncio

from nicegui import ui

from ...jobs.network_store import NetworkStore
from ..library.feed import Snapshot
from ..library.networks import network_rows
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from ..ui.run_table import RunTable

MOST_RUNNING, MOST_WAITING, MOST_FAILED = 8, 4, 3  # rows of the card
TABS = ("runs", "datasets", "networks")


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/")
    async def home(tab: str = TABS[0]) -> None:
        shown = tab if tab in TABS else TABS[0]
        snapshot = studio.feed.snapshot
        found = [row for row in snapshot.datasets if row.newest is not None]
        tabs = [
            ("runs", "Runs", f"{snapshot.runs:,}"), ("datasets", "Datasets", f"{len(found):,}"),
            ("networks", "Networks", f"{snapshot.networks:,}"),
        ]  # fmt: skip
        with frame(studio, "Home", "home"):
            activity_cards(studio)
            with ui.element("section").classes("card sect tables").props('aria-label="Runs, datasets and networks"'):
                fragment(
                    "tabs.html", tabs=tabs, tab=shown, label="What the table shows", address=f"{studio.config.prefix}/"
                )
                if shown == "runs":
                    RunTable(studio)
                elif shown == "datasets":
                    fragment("home_datasets.html", rows=found, base=studio.config.prefix)
                else:
                    store = NetworkStore(studio.config.runs)
                    rows = await asyncio.to_thread(network_rows, store, studio.index.rows())
                    fragment("home_networks.html", rows=rows, base=studio.config.prefix)


def activity_cards(studio: Studio) -> None:
    """What runs and waits, and beside it the machine."""
    with ui.element("div").classes("cols side-r"):
        studio.live.add("jobs", lambda snapshot: jobs(studio, snapshot), "section", "card").props('aria-label="Jobs"')
        shown = studio.live.add("machine", lambda snapshot: machine(studio, snapshot), "section", "card")
        shown.props('aria-label="Machine"')


def jobs(studio: Studio, snapshot: Snapshot) -> str:
    """The card of running and waiting jobs; of many, the first of each state."""
    shown = [one for one in snapshot.activities if one.state == "running"][:MOST_RUNNING]
    shown += [one for one in snapshot.activities if one.state in ("waiting", "held", "paused")][:MOST_WAITING]
    shown += [one for one in snapshot.activities if one.state == "failed"][:MOST_FAILED]
    return render(
        "home_jobs.html", activities=shown, hidden=len(snapshot.activities) - len(shown), running=snapshot.count("running"),
        waiting=snapshot.count("waiting"), failed=snapshot.count("failed"), base=studio.config.prefix,
    )  # fmt: skip


def machine(studio: Studio, snapshot: Snapshot) -> str:
    """The card of the machine."""
    return render("home_machine.html", load=snapshot.load, history=studio.feed.machine.history)
