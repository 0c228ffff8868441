"""The charts of a comparison: any metrics, over epochs, steps or time, of all runs over each other."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from ...records import dataclass
from ..library.comparison import common_metrics
from ..library.feed import Snapshot
from ..library.run_comparison import metrics_of
from ..library.run_series import AXES, all_series, epoch_points, window
from ..library.runs import RunRow
from ..ui.chart_card import ChartCard
from ..ui.charts import ChartSpec, Series
from ..ui.context import Studio
from ..ui.formats import is_share, metric_name
from ..ui.fragment import Fragment
from ..ui.rendering import render

COLOURS = 8
WITHIN = {"step_loss": "train loss, by step", "step_examples_per_second": "examples/s, by step"}
OF_EPOCHS = {"step": "steps", "time": "seconds"}


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison and the number of its colour, from 1."""

    row: RunRow
    colour: int


class CompareCharts:
    """Two charts at first; more can be added, and each shows the metric that is chosen."""

    def __init__(self, studio: Studio, runs: list[ComparedRun]) -> None:
        self.studio, self.colours = studio, {one.row.id: one.colour for one in runs}
        rows = [one.row for one in runs]
        self.axis = "epoch"
        self.span: tuple[float, float] | None = None  # the part of the axis that is looked at
        self.metrics = [*metrics_of(rows), *WITHIN]
        self._version = studio.feed.snapshot.runs_version
        self.controls = Fragment(self._controls(), on={"axis": self._set_axis}).classes("sect")
        self.place = ui.element("div").classes("cols c2")
        self.cards: list[ChartCard] = []
        self.shown: list[str] = []
        for metric in common_metrics(rows) or self.metrics[:1]:
            self._add(metric)
        more = render("compare_more.html", metrics=[(name, self._title(name)) for name in self.metrics])
        Fragment(more, on={"more": self._add_chosen}).classes("next")
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def runs(self) -> list[ComparedRun]:
        """The runs as they are now."""
        found = ((self.studio.index.get(name), colour) for name, colour in self.colours.items())
        return [ComparedRun(row, colour) for row, colour in found if row is not None]

    def _controls(self) -> str:
        axes = [("epoch", "Epochs"), ("step", "Steps"), ("time", "Time")]
        return render("chart_controls.html", axes=axes, axis=self.axis, smoothing=0, note="best epoch")

    def _add(self, metric: str) -> None:
        number = len(self.cards)
        self.shown.append(metric)
        runs = ",".join(self.colours)
        with self.place:
            chooser = lambda: self._chooser(number)  # noqa: E731
            csv = f"{self.studio.config.prefix}/api/v1/compare/table.csv?runs={quote(runs)}"
            self.cards.append(
                ChartCard(
                    self._spec(metric),
                    f"compare-{metric}",
                    224,
                    csv=csv,
                    log=True,
                    on_zoom=self._zoom,
                    has_legend=False,
                    head=chooser,
                )
            )

    def _chooser(self, number: int) -> None:
        async def choose(metric: str) -> None:
            self.shown[number] = metric
            await self._refresh()

        options = [(name, self._title(name)) for name in self.metrics]
        Fragment(render("metric_chooser.html", metrics=options, chosen=self.shown[number]), on={"metric": choose})

    def _add_chosen(self, metric: str) -> None:
        if metric in self.metrics:
            self._add(metric)

    async def _set_axis(self, axis: str) -> None:
        self.axis, self.span = axis if axis in AXES else "epoch", None
        self.controls.show(self._controls())
        await self._refresh()

    async def _zoom(self, span: list[float] | None) -> None:
        self.span = (float(span[0]), float(span[1])) if span else None
        await self._refresh()

    def _follow(self, snapshot: Snapshot) -> None:
        if snapshot.runs_version != self._version:
            self._version = snapshot.runs_version
            background_tasks.create(self._refresh(), name="comparison")

    async def _refresh(self) -> None:
        specs = await asyncio.to_thread(lambda: [self._spec(metric) for metric in self.shown])
        for card, spec in zip(self.cards, specs, strict=False):
            card.show(spec)

    def _title(self, metric: str) -> str:
        text = WITHIN.get(metric) or metric_name(metric)
        return text[:1].upper() + text[1:]

    def _spec(self, metric: str) -> ChartSpec:
        series, runs = [], self.runs()
        for row, colour in ((one.row, one.colour) for one in runs):
            points = self._points(row, metric)
            if points:
                best = self._best(row, metric) if metric not in WITHIN else None
                number = (colour - 1) % COLOURS + 1
                series.append(Series(row.name, points, f"s{number}", dash=colour > COLOURS, smooth=True, best=best))
        share = is_share(metric)
        y = {"scale": True, "max": 1} if share else {"min": 0}
        return ChartSpec(
            self._title(metric), series, "percent" if share else "number", self._x(runs, series), y, "compare"
        )

    def _points(self, row: RunRow, metric: str) -> list[tuple[float, float]]:
        if metric in WITHIN:
            found = all_series(row, self.axis).get(metric)
            return [] if found is None else window(*found, self.span)
        return epoch_points(row, metric, self.axis)

    def _best(self, row: RunRow, metric: str) -> tuple[float, float] | None:
        value = row.value_at(metric, row.best_index)
        place = row.value_at(OF_EPOCHS.get(self.axis, "epoch"), row.best_index)
        return None if value is None or place is None else (place, value)

    def _x(self, runs: list[ComparedRun], series: list[Series]) -> dict[str, Any]:
        if self.axis == "epoch":
            return {
                "label": "Epoch",
                "max": max((max(one.row.planned, one.row.epochs) for one in runs), default=1),
                "whole": True,
            }
        end = max((one.data[-1][0] for one in series), default=1.0)
        return {"label": AXES[self.axis], "max": end, **({"format": "seconds"} if self.axis == "time" else {})}
