"""The log of a run, live, and the history of its status."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import background_tasks, ui

from ...jobs.events import FILE
from ...jobs.profiles.timeline import timeline
from ..library.changes import stamp
from ..library.feed import Snapshot
from ..library.run_series import events_of
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.formats import full_time
from ..ui.fragment import Fragment, fragment
from ..ui.rendering import render

LINES = 2000  # the last ones are shown; all can be downloaded


async def log(studio: Studio, row: RunRow) -> None:
    """The tab: messages and epochs; it follows the run while the switch is on."""
    LogCard(studio, row, await asyncio.to_thread(_lines, row))


class LogCard:
    """Lines of the log."""

    def __init__(self, studio: Studio, row: RunRow, lines: list[tuple[str, str, str]]) -> None:
        self.studio, self.row, self.is_live = studio, row, True
        self._seen: Any = None
        with ui.element("section").classes("card sect").props('aria-label="Log"'):
            Fragment(render("run_log_tools.html", row=row, base=studio.config.prefix), on={"follow": self._set_live})
            self.text = Fragment(self._html(lines))
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _html(self, lines: list[tuple[str, str, str]]) -> str:
        return render("run_log.html", lines=lines[-LINES:], hidden=max(0, len(lines) - LINES))

    def _set_live(self, value: str) -> None:
        self.is_live = value == "true"

    def _follow(self, snapshot: Snapshot) -> None:
        now = stamp(self.row.folder / FILE, self.row.folder / "log.txt")
        if self.is_live and now != self._seen:
            self._seen = now
            background_tasks.create(self._read(), name="log")

    async def _read(self) -> None:
        lines = await asyncio.to_thread(_lines, self.row)
        html = await asyncio.to_thread(self._html, lines)
        if html != self.text.html:
            self.text.show(html)
            self.text.client.run_javascript(
                "document.querySelectorAll('[data-log]').forEach(e => e.scrollTop = e.scrollHeight)"
            )


def _lines(row: RunRow) -> list[tuple[str, str, str]]:
    """Messages of the events and lines of log.txt, by time."""
    events = events_of(row.folder).read()
    found = [(full_time(time), level, text) for time, level, text in events.log]
    try:
        for line in (row.folder / "log.txt").read_text("utf-8", errors="replace").splitlines():
            found.append((line[:19], "info", line[20:]))
    except OSError:
        pass  # there is none before the first epoch
    return sorted(found, key=lambda one: one[0])


async def history(studio: Studio, row: RunRow) -> None:
    """What happened to the run, and when."""
    found = await asyncio.to_thread(timeline, row.folder, studio.queue)
    with ui.element("section").classes("card sect").props('aria-label="History"'):
        fragment("run_history.html", entries=found, base=studio.config.prefix)
