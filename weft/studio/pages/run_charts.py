"""The overview of a run: charts of everything that it measures, live."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import numpy as np
from nicegui import background_tasks, ui

from ..library.feed import Snapshot
from ..library.run_schedule import planned_rates
from ..library.run_series import AXES, RunEvents, epoch_points, events_of, mean_window, window
from ..library.runs import RunRow
from ..ui.chart_card import ChartCard
from ..ui.charts import ChartSpec, Series
from ..ui.context import Studio
from ..ui.formats import is_share, metric_name
from ..ui.fragment import Fragment
from ..ui.later import add_later
from ..ui.rendering import render
from .run_confusion import confusion_cards
from .run_ensemble import ensemble_card
from .run_predictions import watched_card
from .run_ranks import RankCard

SPLITS = {"validation": ("val", "s1"), "train": ("train", "s2"), "test": ("test", "s3")}
READ_FIRST = 1 << 19  # bytes of events that are read before the page is sent
NOT_METRICS = ("epoch", "steps", "seconds", "rate", "examples_per_second")
SMALL_CHARTS = ("rate", "speed", "memory", "cpu", "free")
SMOOTHING, LONG = 0.6, 60  # of lines with more points than that, before somebody moves the slider
SHORT, ROOM = 20, 1.5  # epochs that are always shown whole; of longer trainings, how much more than what is done
OF_EPOCHS = {"step": "steps", "time": "seconds"}


async def overview(studio: Studio, row: RunRow) -> None:
    """Charts, the confusion matrix and the watched examples."""
    events = events_of(row.folder)
    if not events.is_longer_than(READ_FIRST):
        await asyncio.to_thread(events.read)  # a long file is read after the page is sent
    ensemble_card(studio, row)
    RankCard(studio, row, events)
    if row.made_by != "ensemble":  # nothing was trained
        RunCharts(studio, row, events)
    add_later(lambda: confusion_cards(studio, row))
    add_later(lambda: watched_card(studio, row))


class RunCharts:
    """The charts of a run. They follow it, and may show a second run beside it."""

    def __init__(self, studio: Studio, row: RunRow, events: RunEvents, only: tuple[str, ...] | None = None) -> None:
        self.studio, self.run, self.events, self.only = studio, row.id, events, only
        self.axis, self.is_live = "epoch", True
        self.span: tuple[float, float] | None = None  # the part of the axis that is looked at
        self.other: RunRow | None = None
        self._stamp: Any = None
        self._reading = False
        self.controls = Fragment(
            self._controls(), on={"compare": self._compare, "axis": self._set_axis, "follow": self._set_live}
        ).classes("sect")
        self.cards: dict[str, ChartCard] = {}
        self.large = ui.element("div").classes("cols c2")
        self.small = ui.element("div").classes("cols c3 sect")
        self._show(self.specs(row))
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))
        background_tasks.create_lazy(self._refresh(), name=f"charts {id(self)}")

    def _controls(self) -> str:
        others = [one.id for one in self.studio.index.rows() if one.id != self.run][:200]
        axes = [("epoch", "Epochs"), ("step", "Steps"), ("time", "Time")]
        return render(
            "chart_controls.html", axes=axes, axis=self.axis, smoothing=SMOOTHING if self._is_long() else 0, others=others, other=self.other.id if self.other else "",
            follow=self.is_live,
        )  # fmt: skip

    def _is_long(self) -> bool:
        return len(self.events.progress.places["step"]) > LONG or self.events.is_longer_than(READ_FIRST)

    def _show(self, specs: dict[str, ChartSpec]) -> None:
        for name, spec in specs.items():
            if name in self.cards:
                self.cards[name].show(spec)
                continue
            is_small = name in SMALL_CHARTS
            csv = (
                f"{self.studio.config.prefix}/api/v1/runs/{quote(self.run)}/series.csv?names={','.join(_columns(name))}"
            )
            with self.small if is_small else self.large:
                self.cards[name] = ChartCard(
                    spec, f"{self.run.rpartition('/')[2]}-{name}", 124 if is_small else 224, csv=csv, log=not is_small, small=is_small,
                    on_zoom=self._zoom,
                )  # fmt: skip

    # --- what the user does -----------------------------------------------------------------------------------------------------

    async def _compare(self, run: str) -> None:
        self.other = self.studio.index.get(run)
        await self._refresh()

    async def _set_axis(self, axis: str) -> None:
        self.axis, self.span = axis if axis in AXES else "epoch", None
        self.controls.show(self._controls())
        await self._refresh()

    def _set_live(self, value: str) -> None:
        self.is_live, self._stamp = value == "true", None

    async def _zoom(self, span: list[float] | None) -> None:
        """Show more points of the part that is looked at."""
        self.span = (float(span[0]), float(span[1])) if span else None
        await self._refresh()

    # --- live -------------------------------------------------------------------------------------------------------------------

    def _follow(self, snapshot: Snapshot) -> None:
        active = next((one for one in snapshot.activities if one.run == self.run), None)
        stamp = snapshot.runs_version, active.progress if active else None
        if self.is_live and stamp != self._stamp and not self._reading:
            self._stamp, self._reading = stamp, True
            background_tasks.create(self._refresh(), name="charts")

    async def _refresh(self) -> None:
        try:
            row = self.studio.index.get(self.run)
            if row is not None:
                self._show(await asyncio.to_thread(self._read, row))
        finally:
            self._reading = False

    def _read(self, row: RunRow) -> dict[str, ChartSpec]:
        self.events.read()
        rates = planned_rates(row.settings, row.summary.get("parameters"))
        return self.specs(row, rates)

    # --- what the charts show ---------------------------------------------------------------------------------------------------

    def specs(self, row: RunRow, rates: list[tuple[float, float]] | None = None) -> dict[str, ChartSpec]:
        """The charts by name: one for each metric, then learning rate, speed and resources."""
        found = {name: self._metric(row, name) for name in metrics_of(row)}
        chart = partial(ChartSpec, x=self._x(row), y={"min": 0}, group=f"run {row.id}")
        found |= {
            "rate": replace(chart("Learning rate", self._rate(row, rates or [])), x=self._x(row, whole=True)),
            "speed": chart("Examples/s", self._speed(row)),
            "memory": chart("Memory", self._resource("memory_bytes", "memory", "s7"), "bytes"),
            "cpu": chart("Processor cores in use", self._line("cores", *self.events.cpu(self.axis), "s4")),
            "free": chart("Free memory of the device", self._resource("free_bytes", "free", "s8"), "bytes"),
        }
        shown = {name: spec for name, spec in found.items() if spec.series or name == "loss"}
        if self.only is None:
            return {name: spec for name, spec in shown.items() if name not in ("cpu", "free")}
        return {name: spec for name, spec in shown.items() if name in self.only}

    def _metric(self, row: RunRow, name: str) -> ChartSpec:
        series = []
        for split, (title, colour) in SPLITS.items():
            points, within, means = epoch_points(row, f"{split}_{name}", self.axis), [], []
            if name == "loss" and split == "train":
                measured = self.events.progress.series("loss", self.axis)
                within, means = window(*measured, self.span), mean_window(*measured, self.span)
                points = within or points
            if points:
                best = self._best(row, f"{split}_{name}") if split == "validation" else None
                series.append(Series(title, points, colour, smooth=bool(within), best=best, means=means))
        other = epoch_points(self.other, f"validation_{name}", self.axis) if self.other is not None else []
        if self.other is not None and other:
            series.append(Series(f"val, {self.other.name}", other, "s1", dash=True, faint=True))
        share = is_share(name)
        y = {"scale": True, "max": 1} if share else {"min": 0}
        title = metric_name(name)
        return ChartSpec(
            title[:1].upper() + title[1:], series, "percent" if share else "number", self._x(row), y, f"run {row.id}"
        )

    def _best(self, row: RunRow, metric: str) -> tuple[float, float] | None:
        value = row.value_at(metric, row.best_index)
        place = row.value_at(OF_EPOCHS.get(self.axis, "epoch"), row.best_index)
        return None if value is None or place is None else (place, value)

    def _rate(self, row: RunRow, planned: list[tuple[float, float]]) -> list[Series]:
        done = epoch_points(row, "rate", self.axis)
        found = [Series("learning rate", done, "s3")] if done else []
        if self.axis == "epoch" and planned:
            future = [point for point in planned if point[0] >= row.epochs] if row.status == "running" else []
            found += [Series("planned", future, "ink-3", dash=True, thin=True)] if future else []
        return found

    def _speed(self, row: RunRow) -> list[Series]:
        within = self._line("examples/s", *self.events.progress.series("examples_per_second", self.axis), "s6")
        by_epoch = epoch_points(row, "examples_per_second", self.axis)
        return within or ([Series("examples/s", by_epoch, "s6")] if by_epoch else [])

    def _resource(self, name: str, title: str, colour: str) -> list[Series]:
        return self._line(title, *self.events.resources.series(name, self.axis), colour)

    def _line(self, title: str, x: np.ndarray, y: np.ndarray, colour: str) -> list[Series]:
        points = window(x, y, self.span)
        return [Series(title, points, colour)] if points else []

    def _x(self, row: RunRow, whole: bool = False) -> dict[str, Any]:
        """The axis runs to the planned end, so that progress is visible; of a long training that has just begun, to a part of it."""
        last = self.events.progress.last(self.axis)
        done, planned = max(row.epochs, 1), max(row.planned, row.epochs, 1)
        while not whole and row.status == "running" and planned > SHORT and planned > 2 * ROOM * done:
            planned = math.ceil(planned / 2)
        if self.axis == "epoch":
            return {"label": "Epoch", "max": planned, "whole": True}
        known = row.last(OF_EPOCHS[self.axis]) or 0.0
        end = max(known * (planned / done if row.status == "running" else 1), last) or 1.0
        return {"label": AXES[self.axis], "max": end, **({"format": "seconds"} if self.axis == "time" else {})}


def metrics_of(row: RunRow) -> list[str]:
    """The metrics of a run without their splits: loss and accuracy first."""
    names = ["loss"]
    for column in row.metrics:
        split, _, name = column.partition("_")
        names += [name] if split in SPLITS and name else [column] if column not in NOT_METRICS else []
    return sorted(dict.fromkeys(names), key=lambda name: (name != "loss", "accuracy" not in name))


def _columns(name: str) -> list[str]:
    """The series of the API that a chart shows."""
    of_small = {
        "rate": ["rate"], "speed": ["step_examples_per_second", "examples_per_second"], "memory": ["memory_bytes"], "cpu": ["cpu_cores"],
        "free": ["free_bytes"],
    }  # fmt: skip
    within = ["step_loss"] if name == "loss" else []
    return of_small.get(name) or [f"{split}_{name}" for split in SPLITS] + within
