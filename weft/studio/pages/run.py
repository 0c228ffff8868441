"""A run: progress, charts, evaluation, settings, files, log."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException
from nicegui import ui

from ...jobs.schema import as_text
from ...jobs.settings import SETTINGS
from ..library.activity import Activity
from ..library.feed import Snapshot
from ..library.run_details import files_of, read_details
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.formats import is_share, metric_name, metric_value, three_figures
from ..ui.fragment import fragment
from ..ui.frame import frame
from ..ui.rendering import render
from .run_charts import OverviewCharts
from .run_embedding import embedding
from .run_evaluation import evaluation
from .run_layers import layers

TABS = (
    ("overview", "Overview"),
    ("evaluation", "Evaluation"),
    ("layers", "Layers"),
    ("embedding", "Embedding"),
    ("settings", "Settings"),
    ("files", "Files"),
    ("log", "Log"),
)


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/runs/{run:path}")
    async def run(run: str, tab: str = "overview") -> None:
        row = studio.index.get(run)
        if row is None:
            raise HTTPException(404, f"There is no run {run}.")
        details = await asyncio.to_thread(read_details, row)
        base = studio.config.prefix
        with frame(
            studio, row.name, "runs", live_header=(f"header {run}", lambda snapshot: _header(studio, snapshot, run))
        ):
            studio.live.add(
                f"progress {run}", lambda snapshot: _progress(studio, snapshot, run), "section", "card"
            ).props('aria-label="Progress"')
            tabs = [(key, title, None) for key, title in TABS]
            fragment("tabs.html", tabs=tabs, tab=tab, label="Parts of the run", address=f"{base}/runs/{run}")
            if tab == "evaluation":
                await evaluation(studio, row)
            elif tab == "layers":
                layers(studio, row)
            elif tab == "embedding":
                embedding(studio, row)
            elif tab == "settings":
                _card("run_settings.html", settings=_settings(row))
            elif tab == "files":
                _card("run_files.html", files=await asyncio.to_thread(files_of, row), row=row, base=base)
            elif tab == "log":
                _card("run_log.html", lines=details.log)
            else:
                OverviewCharts(studio, row, details)


def _card(template: str, **values: Any) -> None:
    with ui.element("section").classes("card sect"):
        fragment(template, **values)


def _activity(snapshot: Snapshot, run: str) -> Activity | None:
    return next((one for one in snapshot.activities if one.run == run), None)


def _header(studio: Studio, snapshot: Snapshot, run: str) -> str:
    row, active = studio.index.get(run), _activity(snapshot, run)
    if row is None:
        return render("page_header.html", title=run, base=studio.config.prefix)
    return render(
        "run_header.html", row=row, state=active.state if active else row.status, job=active.job if active else None,
        has_report=(row.folder / "report.html").exists(), base=studio.config.prefix,
    )  # fmt: skip


def _progress(studio: Studio, snapshot: Snapshot, run: str) -> str:
    row, active = studio.index.get(run), _activity(snapshot, run)
    if row is None:
        return ""
    progress = active.progress if active else None
    share = progress.share if progress else min(1.0, row.epochs / row.planned) if row.planned else 0.0
    return render(
        "run_progress.html", row=row, progress=progress, share=share, now=time.time(), metrics=_metrics(row),
        device=str(row.settings.get("device") or "cpu"),
    )  # fmt: skip


@dataclass(frozen=True)
class MetricTile:
    """A cell of the strip of metrics."""

    title: str
    number: str
    unit: str
    context: str


def _metrics(row: RunRow) -> list[MetricTile]:
    """Up to five numbers: what the best epoch is chosen by first."""
    names = [row.best_metric, "validation_loss", "train_loss", "train_accuracy"]
    found = [_metric(row, name) for name in dict.fromkeys(names) if name and row.last(name) is not None][:4]
    rate = row.last("rate")
    if rate is not None:
        found.append(MetricTile("Learning rate", three_figures(rate), "", str(row.settings.get("schedule") or "")))
    return found


def _metric(row: RunRow, name: str) -> MetricTile:
    number, _, unit = metric_value(name, row.last(name)).partition(" ")
    context = "after the last epoch"
    if row.best_index is not None and name.startswith("validation"):
        context = f"{metric_value(name, row.value_at(name, row.best_index))} at best epoch {row.best_epoch}"
        if name == row.best_metric:
            context = f"best {metric_value(name, row.best)} at epoch {row.best_epoch}"
    return MetricTile(metric_name(name).capitalize(), number, unit, context if is_share(name) or "loss" in name else "")


def _settings(row: RunRow) -> list[tuple[str, str, str, bool]]:
    """Every setting with its meaning; those that differ from the default are marked."""
    return [
        (
            name,
            as_text(value),
            SETTINGS[name].help if name in SETTINGS else "",
            name in SETTINGS and value != SETTINGS[name].default,
        )
        for name, value in row.settings.items()
    ]
