"""Compare: the charts, results and settings of several runs."""

from __future__ import annotations

from nicegui import ui

from ..library.comparison import best_of, common_metrics, differences
from ..library.runs import RunRow
from ..ui.charts import Chart, ChartSpec, Series
from ..ui.context import Studio
from ..ui.formats import is_share, metric_name
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame
from ..ui.rendering import render

COLOURS = 8  # beyond, lines are dashed


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/compare")
    def compare(runs: str = "") -> None:
        rows = [row for name in runs.split(",") if (row := studio.index.get(name)) is not None]
        with frame(studio, "Compare", "compare"):
            others = [row.id for row in studio.index.rows() if row not in rows]
            Fragment(
                render("compare_runs.html", rows=rows, others=others, base=studio.config.prefix),
                on={
                    "add": lambda run: ui.navigate.to(
                        f"{studio.config.prefix}/compare?runs={','.join([*(r.id for r in rows), run])}"
                    )
                },
            )
            if rows:
                _charts(rows)
                _results(studio, rows)
                _settings(rows)


def _charts(rows: list[RunRow]) -> None:
    with ui.element("div").classes("cols c2 sect"):
        for metric in common_metrics(rows):
            title = metric_name(metric).capitalize()
            with ui.element("section").classes("card").props(f'aria-label="{title}"'):
                ui.html(f"<h2>{title}</h2>", sanitize=False).classes("chead")
                Chart(_spec(rows, metric, title))


def _spec(rows: list[RunRow], metric: str, title: str) -> ChartSpec:
    series = [
        Series(row.name, row.points(metric), f"s{i % COLOURS + 1}", dash=i >= COLOURS, best=row.best_point(metric))
        for i, row in enumerate(rows)
        if row.points(metric)
    ]
    x = {"label": "Epoch", "max": max(row.planned for row in rows)}
    shared = {"scale": True, "max": 1} if is_share(metric) else {"min": 0}
    return ChartSpec(title, series, "percent" if is_share(metric) else "number", x, shared, group="compare")


def _results(studio: Studio, rows: list[RunRow]) -> None:
    metrics = common_metrics(rows)
    with ui.element("section").classes("card sect").props('aria-label="Results"'):
        fragment(
            "compare_results.html", rows=rows, metrics=metrics, best={metric: best_of(rows, metric) for metric in metrics},
            base=studio.config.prefix,
        )  # fmt: skip


def _settings(rows: list[RunRow]) -> None:
    if len(rows) > 1:
        found, total = differences(rows)
        with ui.element("section").classes("card sect").props('aria-label="Settings that differ"'):
            fragment("compare_settings.html", rows=rows, differences=found, total=total)
