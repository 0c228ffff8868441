"""Resources that a run uses: memory, processors, the device, speed."""

from __future__ import annotations

import asyncio
import shlex

from nicegui import ui

from ...report.run_record import read_run
from ..library.run_series import events_of
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import fragment
from .run_charts import SMALL_CHARTS, RunCharts
from .run_ranks import RankCard


async def resources(studio: Studio, row: RunRow) -> None:
    """The tab: charts of what was recorded every ten seconds, and the machine."""
    events = await asyncio.to_thread(events_of(row.folder).read)
    RankCard(studio, row, events)
    if not events.resources.places["step"]:
        with ui.element("section").classes("card sect"):
            fragment("nothing_yet.html", text="Memory and processor time are recorded every ten seconds of training.")
    else:
        RunCharts(studio, row, events, only=tuple(name for name in SMALL_CHARTS if name != "rate"))
    record = await asyncio.to_thread(_machine, row)
    with ui.element("section").classes("card sect").props('aria-label="Machine"'):
        fragment("run_machine.html", facts=record)


def _machine(row: RunRow) -> dict[str, str]:
    """The machine and the versions that the run was started with."""
    found = read_run(row.folder).environment
    return {
        str(name): shlex.join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in found.items()
    }
