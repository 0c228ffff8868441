"""A sweep: its progress, the best value so far, what mattered, the trials, and parallel coordinates, live."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from nicegui import ui

from ...jobs.sweeps.record import FINISHED, best_first
from ..library.feed import Snapshot
from ..library.sweeps import SweepSnapshot
from ..library.training_fields import setting_title
from ..ui.context import Studio
from ..ui.formats import metric_name
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from ..ui.sweep_chart import best_chart, front_chart, parallel_trials
from ..ui.sweep_view import PRUNERS, STATES, TrialQuery, first_rows, segments, sweep_tiles, trial_rows
from .run import run_assets

COMPARED = 5  # of the best trials


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/sweeps/{name}")
    def sweep(name: str) -> None:
        if sweep_named(studio.feed.snapshot, name) is None and sweep_named(studio.feed.look(), name) is None:
            raise HTTPException(404, f"There is no sweep {name}.")
        base = studio.config.prefix
        header = (f"sweep header {name}", lambda snapshot: _header(studio, snapshot, name))
        with frame(studio, name, "runs", live_header=header):
            run_assets(base)
            sweep_assets(base)
            ui.html(render("sweep_dialog.html", name=name), sanitize=False)
            SweepParts(studio, name)


def sweep_assets(base: str) -> None:
    """Styles and scripts of sweeps."""
    ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/sweeps.css">')
    ui.add_body_html(f'<script src="{base}/assets/sweeps.js"></script>')


def sweep_named(snapshot: Snapshot, name: str) -> SweepSnapshot | None:
    return next((one for one in snapshot.sweeps if one.name == name), None)


def run_of(studio: Studio, folder: str | None) -> str | None:
    """The name of the run in this folder, if the index knows it: TASK/NAME, wherever the runs are now."""
    row = studio.index.get("/".join(Path(folder).parts[-2:])) if folder else None
    return None if row is None else row.id


def _header(studio: Studio, snapshot: Snapshot, name: str) -> str:
    view = sweep_named(snapshot, name)
    ranked = [] if view is None or view.record is None else best_first(view.record.plan.metrics, view.trials)
    runs = [run for one in ranked if one.state == FINISHED and (run := run_of(studio, one.run)) is not None]
    return render(
        "sweep_header.html", name=name, view=view, best_run=runs[0] if runs else None, compared=list(dict.fromkeys(runs))[:COMPARED] if len(runs) > 1 else [],
        base=studio.config.prefix,
    )  # fmt: skip


class SweepParts:
    """What is below the header, with the filter, the order and the chart that the viewer has chosen. It follows the feed."""

    def __init__(self, studio: Studio, name: str) -> None:
        self.studio, self.name = studio, name
        self.query, self.chart = TrialQuery(), "best"
        self._seen: Any = None
        on = {"chart": self._choose_chart, "sort": self._sort, "state": self._filter, "rows": self._rows}
        self.parts = {"progress": self._part("Progress", "card", on)}
        with ui.element("div").classes("cols side-r sect srow"):
            self.parts["chart"] = self._part("Best so far", "card schart", on)
            self.parts["importance"] = self._part("What mattered", "card", on)
        self.parts["trials"] = self._part("Trials", "card sect", on)
        self.parts["parallel"] = self._part("Parallel coordinates", "card sect", on)
        self._follow(studio.feed.snapshot)
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _part(self, label: str, classes: str, on: dict[str, Any]) -> Fragment:
        return Fragment("", "section", on).classes(classes).props(f'aria-label="{label}"')

    # --- what the user does -----------------------------------------------------------------------------------------------------

    def _choose_chart(self, chart: str) -> None:
        self.chart = chart
        self._show()

    def _sort(self, key: str) -> None:
        """Sort by a column, best or largest first; a second time the other way round, a third time as at first."""
        if key != self.query.sort:
            self.query = replace(self.query, sort=key, down=True)
        else:
            self.query = replace(self.query, sort=key if self.query.down else "", down=not self.query.down)
        self._show()

    def _filter(self, state: str) -> None:
        self.query = replace(self.query, state=state)
        self._show()

    def _rows(self, _: str) -> None:
        self.query = replace(self.query, all_rows=not self.query.all_rows)
        self._show()

    # --- what is shown ----------------------------------------------------------------------------------------------------------

    def _follow(self, snapshot: Snapshot) -> None:
        view = sweep_named(snapshot, self.name)
        seen = (view, snapshot.runs_version)
        if view is not None and seen != self._seen:
            self._seen = seen
            self._show()

    def _show(self) -> None:
        view = sweep_named(self.studio.feed.snapshot, self.name)
        if view is None:
            return  # it was deleted: the page stays as it is
        self._put("progress", "sweep_progress.html", view, tiles=sweep_tiles(view), segments=segments(view))
        if view.record is None:
            return
        runs = {one.number: run for one in view.trials if (run := run_of(self.studio, one.run)) is not None}
        self._put("chart", "sweep_chart.html", view, runs=runs, **self._chart(view))
        self._put("importance", "sweep_importance.html", view)
        self._put("trials", "sweep_trials.html", view, **self._trials(view))
        self._put("parallel", "sweep_parallel.html", view, runs=runs, found=parallel_trials(view))

    def _put(self, part: str, template: str, view: SweepSnapshot, **values: Any) -> None:
        space = () if view.record is None else view.record.plan.space
        titles = {one.name: setting_title(one.name) for one in space}
        self.parts[part].show(render(template, view=view, titles=titles, base=self.studio.config.prefix, **values))

    def _chart(self, view: SweepSnapshot) -> dict[str, Any]:
        assert view.record is not None
        assert view.summary is not None
        metrics, front = view.record.plan.metrics, front_chart(view)
        shown = self.chart if front is not None else "best"
        title = (
            "Best so far" if shown == "best" else f"{metric_name(metrics[0].column).capitalize()} by {metrics[1].name}"
        )
        return {
            "chart": front if shown == "front" else best_chart(view), "shown": shown, "title": title, "has_front": front is not None,
            "best": view.summary.best,
        }  # fmt: skip

    def _trials(self, view: SweepSnapshot) -> dict[str, Any]:
        assert view.record is not None
        assert view.summary is not None
        rows = trial_rows(view, self.query, lambda folder: run_of(self.studio, folder))
        counts = {"": len(view.trials), **view.summary.counts}
        states = [(key, title, counts.get(key, 0)) for key, title in STATES.items() if counts.get(key) or not key]
        return {
            "rows": first_rows(rows, self.query), "all": len(rows), "query": self.query, "states": states,
            "pruner": PRUNERS[view.record.plan.pruner],
        }  # fmt: skip
