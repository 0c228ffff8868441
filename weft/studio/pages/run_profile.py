"""The profile of a run: measured as it is used, compared with its compressions or with what it was compressed from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...jobs.profiles.job import has_weights
from ..library.profiles import ProfiledThing, profiled_run
from ..library.runs import RunRow
from ..ui.context import Studio
from .profile_tab import ProfileTab


async def run_profile(studio: Studio, row: RunRow) -> Callable[[], None]:
    """Add the figures above the tabs; what is returned fills the tab."""
    thing = profiled_run(row)
    await asyncio.to_thread(studio.profiles.of, thing)  # they are read away from the event loop, and then known
    return ProfileTab(studio, thing, lambda: _related(studio, row), lambda: has_weights(row.folder)).fill


def _related(studio: Studio, row: RunRow) -> list[tuple[ProfiledThing, bool]]:
    """The original of a compressed run, else its compressions; and whether they were made of it."""
    source = studio.compressions.source(row)
    if source is not None:
        return [(profiled_run(source), False)]
    found = [studio.index.get(one.run) for one in studio.compressions.of(row, studio.feed.snapshot) if one.run]
    return [(profiled_run(one), True) for one in found if one is not None and one.id != row.id]
