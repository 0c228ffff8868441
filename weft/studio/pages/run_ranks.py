"""The card with the ranks of a training over several processes: speed and memory of each, and which one is behind."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import background_tasks, ui

from ..library.feed import Snapshot
from ..library.run_ranks import rank_statuses
from ..library.run_series import RunEvents
from ..library.runs import RUNNING, RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.rendering import render


class RankCard:
    """The card. It is empty, and not shown, for a training in one process."""

    def __init__(self, studio: Studio, row: RunRow, events: RunEvents) -> None:
        self.studio, self.run, self.events = studio, row.id, events
        self._stamp: Any = None
        self._reading = False
        self.card = Fragment(self._html(), "section").classes("card sect").props('aria-label="Ranks"')
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _follow(self, snapshot: Snapshot) -> None:
        active = next((one for one in snapshot.activities if one.run == self.run), None)
        stamp = snapshot.runs_version, active.progress if active else None
        if stamp != self._stamp and not self._reading:
            self._stamp, self._reading = stamp, True
            background_tasks.create(self._refresh(), name="ranks")

    async def _refresh(self) -> None:
        try:
            await asyncio.to_thread(self.events.read)
            self.card.show(self._html())
        finally:
            self._reading = False

    def _html(self) -> str:
        row = self.studio.index.get(self.run)
        running = row is not None and row.status == RUNNING
        ranks = rank_statuses(list(self.events.ranks.values()), running)
        return render("run_ranks.html", ranks=ranks, running=running) if ranks else ""
