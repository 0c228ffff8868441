"""A card with a chart: title, legend with the last values, log scale, table, downloads and full screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui

from .charts import Chart, ChartSpec
from .formats import metric_value, size, three_figures
from .fragment import Fragment
from .rendering import render


class ChartCard:
    """Shows a chart and follows its values. Small cards have the last value in their head instead of a legend."""

    def __init__(
        self, spec: ChartSpec, name: str, height: int = 240, *, csv: str = "", log: bool = False, small: bool = False,
        on_zoom: Callable[[list[float] | None], Any] | None = None, head: Callable[[], None] | None = None, has_legend: bool = True,
    ) -> None:  # fmt: skip
        self.small, self.has_legend, self._head = (
            small,
            has_legend and not small,
            {"name": name, "csv": csv, "log": log},
        )
        with ui.element("section").classes("card").props(f'aria-label="{spec.title.replace(chr(34), "")}"'):
            self.head = Fragment(self._head_html(spec))
            if head is not None:
                head()
            self.legend = Fragment(legend(spec) if self.has_legend else "")
            self.chart = Chart(spec, height)
            if on_zoom is not None:
                self.chart.on("zoom", lambda event: on_zoom(event.args))

    def show(self, spec: ChartSpec) -> None:
        """Show other values."""
        self.chart.show(spec)
        if self.small:
            self.head.show(self._head_html(spec))
        elif self.has_legend:
            self.legend.show(legend(spec))

    def _head_html(self, spec: ChartSpec) -> str:
        value = last_value(spec) if self.small else ""
        return render("chart_head.html", title=spec.title, value=value, **self._head)


def legend(spec: ChartSpec) -> str:
    """The lines of a chart with their last values."""
    shown = [(one, _value(spec, one.data[-1][1]) if one.data else "") for one in spec.series]
    return render("legend.html", lines=shown if len(spec.series) > 1 else [])


def last_value(spec: ChartSpec) -> str:
    """The last value of the first line."""
    return _value(spec, spec.series[0].data[-1][1]) if spec.series and spec.series[0].data else ""


def _value(spec: ChartSpec, value: float) -> str:
    if spec.format == "bytes":
        return size(value)
    return metric_value("accuracy", value) if spec.format == "percent" else three_figures(value)
