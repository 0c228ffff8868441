"""The overview of a run: its charts, live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import background_tasks, ui

from ..library.feed import Snapshot
from ..library.run_details import Points, RunDetails, read_details
from ..library.runs import RunRow
from ..ui.charts import Chart, ChartSpec, Series
from ..ui.context import Studio
from ..ui.formats import metric_value
from ..ui.fragment import Fragment
from ..ui.rendering import render


class OverviewCharts:
    """Loss, accuracy, learning rate, speed and memory. They follow the run, and may show a second run beside it."""

    def __init__(self, studio: Studio, row: RunRow, details: RunDetails) -> None:
        self.studio, self.run = studio, row.id
        self.other: RunRow | None = None
        self.other_details: RunDetails | None = None
        self._stamp: Any = None
        self._reading = False
        others = [one.id for one in studio.index.rows() if one.id != row.id][:100]
        Fragment(
            render("chart_controls.html", others=others), on={"smoothing": self._smooth, "compare": self._compare}
        ).classes("sect")
        specs = self._specs(row, details)
        self.charts: dict[str, Chart] = {}
        self.legends: dict[str, Fragment] = {}
        with ui.element("div").classes("cols c2 sect"):
            for name in ("loss", "accuracy"):
                if name in specs:
                    self._card(name, specs[name], 240)
        with ui.element("div").classes("cols c3 sect"):
            for name in ("rate", "speed", "memory"):
                if name in specs:
                    self._card(name, specs[name], 140)
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _card(self, name: str, spec: ChartSpec, height: int) -> None:
        with ui.element("section").classes("card").props(f'aria-label="{spec.title}"'):
            handlers: dict[str, Callable[[Any], Any]] = {
                "log": lambda on: self.charts[name].set(log=on == "true"), "save": lambda _: self.charts[name].save(f"{self.run.split('/')[-1]}-{name}")
            }  # fmt: skip
            Fragment(render("chart_head.html", title=spec.title, log=name == "loss"), on=handlers)
            self.legends[name] = Fragment(_legend(spec))
            self.charts[name] = Chart(spec, height)

    # --- what the user does -----------------------------------------------------------------------------------------------------

    def _smooth(self, value: str) -> None:
        for chart in self.charts.values():
            chart.set(smoothing=float(value))

    async def _compare(self, run: str) -> None:
        self.other = self.studio.index.get(run)
        self.other_details = None if self.other is None else await asyncio.to_thread(read_details, self.other)
        self._stamp = None
        await self._refresh()

    # --- live -------------------------------------------------------------------------------------------------------------------

    def _follow(self, snapshot: Snapshot) -> None:
        active = next((one for one in snapshot.activities if one.run == self.run), None)
        stamp = snapshot.runs_version, active.progress if active else None
        if stamp != self._stamp and not self._reading:
            self._stamp, self._reading = stamp, True
            background_tasks.create(self._refresh(), name="charts")

    async def _refresh(self) -> None:
        try:
            row = self.studio.index.get(self.run)
            if row is None:
                return
            details = await asyncio.to_thread(read_details, row)
            for name, spec in self._specs(row, details).items():
                if name in self.charts:
                    self.charts[name].show(spec)
                    self.legends[name].show(_legend(spec))
        finally:
            self._reading = False

    # --- what the charts show ---------------------------------------------------------------------------------------------------

    def _specs(self, row: RunRow, details: RunDetails) -> dict[str, ChartSpec]:
        epochs, within = details.by_epoch, details.within
        x = {"label": "Epoch", "max": max(row.planned, 1)}
        group = f"run {row.id}"
        loss = [
            self._line("val", epochs.get("validation_loss"), "s1", row, "validation_loss"),
            self._line("train", within.get("loss") or epochs.get("train_loss"), "s2", smooth=True),
            self._beside("validation_loss"),
        ]
        accuracy = [
            self._line("val", epochs.get("validation_accuracy"), "s1", row, "validation_accuracy"),
            self._line("train", epochs.get("train_accuracy"), "s2"),
            self._beside("validation_accuracy"),
        ]
        specs = {
            "loss": ChartSpec("Loss", _present(loss), x=x, y={"min": 0}, group=group),
            "accuracy": ChartSpec("Accuracy", _present(accuracy), "percent", x, {"scale": True, "max": 1}, group),
            "rate": ChartSpec("Learning rate", _present([self._line("learning rate", epochs.get("rate"), "s3")]), x=x, group=group),
            "speed": ChartSpec(
                "Examples a second",
                _present([self._line("examples/s", within.get("examples_per_second") or epochs.get("examples_per_second"), "s6")]),
                x=x, y={"min": 0}, group=group,
            ),
            "memory": ChartSpec("Memory", _present([self._line("memory", within.get("memory_bytes"), "s7")]), "bytes", x, {"min": 0}, group),
        }  # fmt: skip
        return {name: spec for name, spec in specs.items() if spec.series or name == "loss"}

    def _line(
        self,
        name: str,
        points: Points | None,
        colour: str,
        row: RunRow | None = None,
        metric: str = "",
        smooth: bool = False,
    ) -> Series | None:
        if not points:
            return None
        best = None
        if (
            row is not None
            and row.best_epoch is not None
            and (value := row.value_at(metric, row.best_index)) is not None
        ):
            best = (float(row.best_epoch), value)
        return Series(name, points, colour, smooth=smooth, best=best)

    def _beside(self, metric: str) -> Series | None:
        if self.other is None or self.other_details is None or not self.other_details.by_epoch.get(metric):
            return None
        return Series(f"val, {self.other.name}", self.other_details.by_epoch[metric], "s1", dash=True, faint=True)


def _present(series: list[Series | None]) -> list[Series]:
    return [one for one in series if one is not None]


def _legend(spec: ChartSpec) -> str:
    """The lines of a chart with their last values."""
    metric = "accuracy" if spec.format == "percent" else "loss"
    shown = [(one, metric_value(metric, one.data[-1][1]) if spec.format != "bytes" else "") for one in spec.series]
    return render("legend.html", lines=shown if len(spec.series) > 1 else [])
