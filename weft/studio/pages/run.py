"""A run: its header with what can be done, progress, and tabs. Each tab is a file of its own (run_*.py)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import HTTPException
from nicegui import ui

from ...jobs.compression.state import is_compression
from ...records import dataclass
from ..library.activity import Activity
from ..library.feed import Snapshot
from ..library.profiles import profiled_run
from ..library.runs import RunRow
from ..library.training_form import device_title
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from .profile_tab import profile_button
from .run_charts import overview
from .run_checkpoints import checkpoint_count, checkpoints_tab
from .run_compress import compress_tab
from .run_embedding import embedding
from .run_ensemble import is_ensemble
from .run_evaluation import evaluation
from .run_files import files, settings_tab
from .run_layers import layers
from .run_log import history, log
from .run_predictions import predictions
from .run_profile import run_profile
from .run_resources import resources
from .run_tiles import made_text, metric_tiles


@dataclass(frozen=True)
class RunTab:
    """A tab: its key in the address, its title, what fills it, and a number beside the title."""

    key: str
    title: str
    show: Callable[[Studio, RunRow], Any]  # may be a coroutine
    count: Callable[[RunRow], int | None] = lambda row: None
    has_progress: bool = True  # whether progress and metrics are above the tabs
    has_own_head: bool = False  # whether `show` first adds what is above the tabs, and returns what fills the tab


TABS = (
    RunTab("overview", "Overview", overview),
    RunTab("evaluation", "Evaluation", evaluation, has_progress=False),
    RunTab("predictions", "Predictions", predictions),
    RunTab("layers", "Layers", layers, has_progress=False),
    RunTab("embedding", "Embedding", embedding, has_progress=False),
    RunTab("resources", "Resources", resources),
    RunTab("profile", "Profile", run_profile, has_progress=False, has_own_head=True),
    RunTab("compress", "Compress", compress_tab, has_progress=False),
    RunTab("checkpoints", "Checkpoints", checkpoints_tab, checkpoint_count),
    RunTab("files", "Export", files),
    RunTab("settings", "Settings", settings_tab),
    RunTab("log", "Log", log),
    RunTab("history", "History", history),
)


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/runs/{run:path}")
    async def run(run: str, tab: str = "overview") -> None:
        row = studio.index.get(run)
        if row is None:
            raise HTTPException(404, f"There is no run {run}.")
        shown = next((one for one in TABS if one.key == tab), TABS[0])
        base = studio.config.prefix
        header = (f"header {run} {shown.key}", lambda snapshot: _header(studio, snapshot, run, shown.key))
        with frame(studio, row.name, "runs", live_header=header):
            run_assets(base)
            ui.html(render("run_dialogs.html", row=row, base=base), sanitize=False)
            if shown.has_progress:
                progress = lambda snapshot: _progress(studio, snapshot, run)  # noqa: E731
                studio.live.add(f"progress {run}", progress, "section", "card").props('aria-label="Progress"')
            head = await shown.show(studio, row) if shown.has_own_head else None
            tabs = [(one.key, one.title, one.count(row)) for one in TABS]
            fragment("tabs.html", tabs=tabs, tab=shown.key, label="Parts of the run", address=f"{base}/runs/{run}")
            made = head() if head is not None else shown.show(studio, row)
            if made is not None:
                await made


def run_assets(base: str) -> None:
    """Styles and scripts of runs and comparisons."""
    ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/run.css">')
    ui.add_body_html(f'<script src="{base}/assets/run_page.js"></script>')


def _activity(snapshot: Snapshot, run: str) -> Activity | None:
    return next((one for one in snapshot.activities if one.run == run), None)


def _header(studio: Studio, snapshot: Snapshot, run: str, tab: str = "") -> str:
    row, active = studio.index.get(run), _activity(snapshot, run)
    if row is None:
        return render("page_header.html", title=run, base=studio.config.prefix)
    compressing = any(one.status == "running" and one.run != run for one in studio.compressions.of(row, snapshot))
    return render(
        "run_header.html", row=row, compressing=compressing, is_made=is_compression(row.folder) or is_ensemble(row.folder), state=active.state if active else row.status, can_pause=active is not None and active.job is not None,
        has_report=(row.folder / "report.html").exists(), has_weights=(row.folder / "weights" / "best.safetensors").exists(),
        group=_group(snapshot, row), base=studio.config.prefix, measure=profile_button(studio, profiled_run(row)) if tab == "profile" else None,
    )  # fmt: skip


def _group(snapshot: Snapshot, row: RunRow) -> tuple[str, str] | None:
    """Title and page of the sweep or the cross-validation that a run belongs to."""
    group = row.annotations.group
    if any(one.name == group for one in snapshot.sweeps):
        return f"sweep {group}", f"/sweeps/{group}"
    return (f"folds {group}", f"/folds/{group}") if any(one.name == group for one in snapshot.folds) else None


def _progress(studio: Studio, snapshot: Snapshot, run: str) -> str:
    row, active = studio.index.get(run), _activity(snapshot, run)
    if row is None:
        return ""
    progress = active.progress if active else None
    share = progress.share if progress else min(1.0, row.epochs / row.planned) if row.planned else 0.0
    return render(
        "run_progress.html", row=row, progress=progress, share=share, now=time.time(), metrics=metric_tiles(row, run_before(studio, row)),
        device=device_title(row.settings.get("device")), doing=active.doing if active else "", made=made_text(row) if row.made_by and not active else "",
    )  # fmt: skip


def run_before(studio: Studio, row: RunRow) -> RunRow | None:
    """The last run on the same data before this one, with the same metric."""
    earlier = (one for one in studio.index.rows() if one.started < row.started and one.data == row.data)
    return next((one for one in earlier if one.best_metric == row.best_metric and one.epochs), None)
