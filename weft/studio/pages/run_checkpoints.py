"""Checkpoints of a run: what each is, and what can be done with it."""

from __future__ import annotations

import asyncio

from nicegui import background_tasks, ui

from ...jobs.checkpoints import checkpoints
from ..library.changes import stamp
from ..library.feed import Snapshot
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.rendering import render


async def checkpoints_tab(studio: Studio, row: RunRow) -> None:
    """The tab; it follows the run."""
    card = Fragment(await asyncio.to_thread(_html, studio, row), "section").classes("card sect")
    card.props('aria-label="Checkpoints"')

    async def again() -> None:
        card.show(await asyncio.to_thread(_html, studio, row))

    watched = (row.folder / "weights", row.folder / "state", row.folder / "metrics.csv")
    seen = stamp(*watched)

    def follow(snapshot: Snapshot) -> None:
        nonlocal seen
        now = stamp(*watched)
        if now != seen:
            seen = now
            background_tasks.create(again(), name="checkpoints")

    ui.context.client.on_delete(studio.feed.subscribe(follow))


def checkpoint_count(row: RunRow) -> int | None:
    """The number beside the title."""
    return sum(1 for part in ("weights", "state") for _ in (row.folder / part).glob("*.safetensors")) or None


def _html(studio: Studio, row: RunRow) -> str:
    found = checkpoints(row.folder)
    singles = sum(one.name.startswith("weights/epoch-") for one in found)
    return render(
        "run_checkpoints.html", found=found, row=row, base=studio.config.prefix, singles=singles, running=row.status == "running"
    )  # fmt: skip
