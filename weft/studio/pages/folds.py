"""Cross-validations: the list, and one with mean and deviation of each metric over its folds."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException
from nicegui import ui

from ..library.feed import Snapshot
from ..library.folds import FoldsSnapshot
from ..ui.context import Studio
from ..ui.folds_chart import folds_chart, main_metric, mean_text
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from ..ui.run_groups import group_header, group_tabs
from .run import run_assets
from .sweep import sweep_assets


def add(studio: Studio) -> None:
    """Register the pages."""
    base = studio.config.prefix

    @studio_page("/folds")
    def all_folds() -> None:
        with frame(studio, "Cross-validations", "runs", group_header(studio, "folds")):
            sweep_assets(base)
            group_tabs(studio, "folds")
            studio.live.add("folds", lambda snapshot: _table(studio, snapshot), "section", "card").props(
                'aria-label="Cross-validations"'
            )

    @studio_page("/folds/{name}")
    def folds(name: str) -> None:
        if folds_named(studio.feed.snapshot, name) is None and folds_named(studio.feed.look(), name) is None:
            raise HTTPException(404, f"There is no cross-validation {name}.")
        header = (
            f"folds header {name}",
            lambda s: render("folds_header.html", name=name, view=folds_named(s, name), base=base),
        )
        with frame(studio, name, "runs", live_header=header):
            run_assets(base)
            sweep_assets(base)
            ui.html(render("ensemble_dialog.html"), sanitize=False)
            FoldsParts(studio, name)


def folds_named(snapshot: Snapshot, name: str) -> FoldsSnapshot | None:
    return next((one for one in snapshot.folds if one.name == name), None)


def _table(studio: Studio, snapshot: Snapshot) -> str:
    rows = []
    for one in snapshot.folds:
        metric = main_metric(list(one.metrics))
        shown = (metric, *mean_text(metric, one.metrics[metric])) if metric else None
        rows.append((one, one.done([studio.index.get(run) for run in one.runs]), shown))
    return render("folds_table.html", rows=rows, base=studio.config.prefix)


class FoldsParts:
    """What is below the header, with the metric that the viewer has chosen. It follows the feed."""

    def __init__(self, studio: Studio, name: str) -> None:
        self.studio, self.name, self.metric = studio, name, ""
        self._seen: Any = None
        on = {"metric": self._choose}
        self.parts = [
            Fragment("", "section", on).classes(classes).props(f'aria-label="{label}"')
            for label, classes in (("Results", "card"), ("Values by fold", "card sect schart"), ("Folds", "card sect"))
        ]
        self._follow(studio.feed.snapshot)
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _choose(self, metric: str) -> None:
        self.metric = metric
        self._show()

    def _follow(self, snapshot: Snapshot) -> None:
        seen = folds_named(snapshot, self.name), snapshot.runs_version
        if seen[0] is not None and seen != self._seen:
            self._seen = seen
            self._show()

    def _show(self) -> None:
        view = folds_named(self.studio.feed.snapshot, self.name)
        if view is None:
            return  # it was deleted: the page stays as it is
        rows = [self.studio.index.get(run) for run in view.runs]
        metric = self.metric if self.metric in view.metrics else main_metric(list(view.metrics))
        values: dict[str, Any] = {
            "view": view, "rows": rows, "done": view.done(rows), "metric": metric, "base": self.studio.config.prefix,
            "tiles": [(name, *mean_text(name, one), one["values"]) for name, one in view.metrics.items()][:5],
            "chart": folds_chart(metric, view.metrics[metric]) if metric else None,
        }  # fmt: skip
        for part, template in zip(self.parts, ("folds_results.html", "folds_chart.html", "folds_runs.html"), strict=True):  # fmt: skip
            part.show(render(template, **values).strip())
