"""Files of a run: exports in other formats, downloads, and the settings that it was started with."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import background_tasks, ui

from ...jobs.export_job import FOLDER, exported_files
from ...jobs.schema import as_text
from ...jobs.settings import SETTINGS
from ..api.run_actions import export_jobs
from ..library.changes import stamp
from ..library.feed import Snapshot
from ..library.run_details import files_of
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment, fragment
from ..ui.rendering import render

FORMATS = (
    ("weft", "weft program", "The network with preprocessing and labels, for weft predict and weft.load."),
    ("onnx", "ONNX", "From pixels to probabilities, for any runtime of ONNX."),
    ("c", "C library", "A static library with a header and an example; needs no Python."),
    ("web", "Web page", "A folder that classifies pictures in a browser, without a server."),
)


async def files(studio: Studio, row: RunRow) -> None:
    """The tab; exports appear when they are done."""
    exports = Fragment(await asyncio.to_thread(_exports, studio, row), "section").classes("card sect")
    exports.props('aria-label="Export"')

    async def again() -> None:
        exports.show(await asyncio.to_thread(_exports, studio, row))

    seen: Any = None

    def follow(snapshot: Snapshot) -> None:
        nonlocal seen
        states = [(one.job, one.state) for one in snapshot.activities], [one.number for one in snapshot.ended[:5]]
        now = (stamp(row.folder / FOLDER), *states)
        if now != seen:
            seen = now
            background_tasks.create(again(), name="exports")

    ui.context.client.on_delete(studio.feed.subscribe(follow))
    with ui.element("section").classes("card sect").props('aria-label="Files"'):
        fragment("run_files.html", files=await asyncio.to_thread(files_of, row), row=row, base=studio.config.prefix)


def _exports(studio: Studio, row: RunRow) -> str:
    found = [(path.name, path.stat().st_size, path.stat().st_mtime) for path in exported_files(row.folder)]
    return render(
        "run_exports.html", formats=FORMATS, files=found, jobs=export_jobs(studio, row.folder), row=row, base=studio.config.prefix,
        has_weights=(row.folder / "weights" / "best.safetensors").exists(),
    )  # fmt: skip


async def settings_tab(studio: Studio, row: RunRow) -> None:
    """Every setting with its meaning; those that differ from the default are marked. Notes are above them."""
    shown = [
        (name, as_text(value), SETTINGS[name].help if name in SETTINGS else "", name in SETTINGS and value != SETTINGS[name].default)
        for name, value in row.settings.items()
    ]  # fmt: skip
    with ui.element("section").classes("card sect").props('aria-label="Settings"'):
        fragment("run_settings.html", settings=shown, row=row, base=studio.config.prefix)
