"""The embedding of a run: held-out images as points of a map, made by a job."""

from __future__ import annotations

from urllib.parse import quote

from nicegui import ui

from ...jobs.events import latest
from ...jobs.run_weights import map_file
from ..library.embeddings import embedding_title
from ..library.feed import Snapshot
from ..library.run_network import why_without_layers
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.rendering import render


def embedding(studio: Studio, row: RunRow) -> None:
    """Add the tab to the page."""
    base, why = studio.config.prefix, why_without_layers(row.folder)
    if why:
        with ui.element("section").classes("card sect"):
            fragment("nothing_yet.html", text=why)
        return
    ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/layers.css">')
    ui.add_head_html(f'<script src="{base}/assets/embedding.js" defer></script>')
    studio.live.add(f"embedding {row.id}", lambda snapshot: _html(studio, snapshot, row))


def _html(studio: Studio, snapshot: Snapshot, row: RunRow) -> str:
    """The map if there is one, what its job does, and a button that starts it."""
    try:
        stamp = (row.folder / map_file("best")).stat().st_mtime_ns
    except OSError:
        stamp = 0
    title = embedding_title(row)
    active = next((one for one in snapshot.activities if one.name == title), None)
    doing, share = "", 0.0
    if active is not None and active.job is not None and active.state == "running":
        event = latest(studio.queue.job(active.job).folder, "activity", "progress")
        if event is not None and event.type == "progress":
            doing, share = str(event["what"]), event["done"] / max(1, event["total"])
        elif event is not None:
            doing = str(event["text"])
    return render(
        "embedding.html", row=row, base=studio.config.prefix, stamp=stamp, active=active, doing=doing, share=share,
        address=f"{studio.config.prefix}/api/v1/runs/{quote(row.id)}/embedding", can=(row.folder / "weights" / "best.safetensors").exists(),
        is_old=stamp and _weights_time(row) > stamp,
    )  # fmt: skip


def _weights_time(row: RunRow) -> int:
    try:
        return (row.folder / "weights" / "best.safetensors").stat().st_mtime_ns
    except OSError:
        return 0
