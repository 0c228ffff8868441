"""The tables of a comparison: results at the best, the last or a chosen epoch, and settings."""

from __future__ import annotations

from nicegui import ui

from ...jobs.schema import as_text
from ..library.comparison import differences
from ..library.feed import Snapshot
from ..library.run_comparison import best_runs, metrics_of, value_at
from ..library.training_fields import setting_title
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.rendering import render
from .compare_charts import ComparedRun

MOST_METRICS = 8


class ResultsTable:
    """A row for each run; it follows them."""

    def __init__(self, studio: Studio, runs: list[ComparedRun]) -> None:
        self.studio, self.colours = studio, {one.row.id: one.colour for one in runs}
        self.at, self.epoch = "best", max(1, min(one.row.epochs for one in runs))
        self._version = studio.feed.snapshot.runs_version
        handlers = {"at": self._set_at, "epoch": self._set_epoch}
        self.card = Fragment(self._html(), "section", on=handlers).classes("card sect").props('aria-label="Results"')
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _set_at(self, at: str) -> None:
        self.at = at
        self.card.show(self._html())

    def _set_epoch(self, value: str) -> None:
        self.epoch = int(value) if value.isdigit() else self.epoch
        self.card.show(self._html())

    def _follow(self, snapshot: Snapshot) -> None:
        if snapshot.runs_version != self._version:
            self._version = snapshot.runs_version
            self.card.show(self._html())

    def _html(self) -> str:
        rows = [row for name in self.colours if (row := self.studio.index.get(name)) is not None]
        at = str(self.epoch) if self.at == "epoch" else self.at
        metrics = [name for name in metrics_of(rows) if name not in ("rate", "examples_per_second")][:MOST_METRICS]
        values = {row.id: {metric: value_at(row, metric, at) for metric in metrics} for row in rows}
        packed = {row.id: row.summary["compression"]["bytes"] for row in rows if row.made_by == "compression" and row.summary["compression"].get("bytes")}  # fmt: skip
        return render(
            "compare_results.html", packed=packed, rows=rows, metrics=metrics, values=values, best={metric: best_runs(rows, metric, at) for metric in metrics},
            at=self.at, epoch=self.epoch, colours=self.colours, base=self.studio.config.prefix, ids=",".join(self.colours),
        )  # fmt: skip


class SettingsTable:
    """Settings that differ from those of the first run, or all of them."""

    def __init__(self, runs: list[ComparedRun]) -> None:
        self.runs, self.only_differences = runs, True
        self.card = Fragment(self._html(), "section", on={"only": self._toggle}).classes("card sect")
        self.card.props('aria-label="Settings that differ"')

    def _toggle(self, value: str) -> None:
        self.only_differences = value == "true"
        self.card.show(self._html())

    def _html(self) -> str:
        rows = [one.row for one in self.runs]
        found, total = differences(rows)
        lines = [(one.name, [one.first, *one.others]) for one in found]
        if not self.only_differences:
            known = {one.name for one in found}
            names = dict.fromkeys(name for row in rows for name in row.settings if name not in known)
            lines += [(name, [as_text(rows[0].settings.get(name)), *[None] * (len(rows) - 1)]) for name in names]
        return render(
            "compare_settings.html", runs=self.runs, lines=lines, count=len(found), total=total, only=self.only_differences, made=[row for row in rows if row.made_by], titles=setting_title
        )  # fmt: skip
