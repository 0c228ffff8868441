"""Charts of lines, drawn by ECharts in the browser in the colours of the theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, field
from typing import Any

from nicegui.element import Element
from nicegui.elements.echart import EChart  # registers ECharts, which chart_base imports

from ...records import dataclass
from ...report.decimation import decimated_points

_ = EChart
MOST = 2000  # points of a series that are sent to the browser


@dataclass(frozen=True)
class Series:
    """One line: points in the order of x. `best` is marked by a ring; `smooth` obeys the page's smoothing."""

    name: str
    data: Sequence[tuple[float, float]]
    colour: str = "s1"
    dash: bool = False
    faint: bool = False
    thin: bool = False
    smooth: bool = False
    best: tuple[float, float] | None = None
    means: Sequence[
        tuple[float, float]
    ] = ()  # of a long series whose `data` are mostly extremes: smoothing follows these


@dataclass(frozen=True)
class ChartSpec:
    """What a chart shows. `format`: number, percent, bytes or seconds."""

    title: str
    series: Sequence[Series]
    format: str = "number"
    x: dict[str, Any] = field(default_factory=dict)  # label, min, max, whole, format
    y: dict[str, Any] = field(default_factory=dict)  # min, max, scale
    group: str | None = None

    def as_json(self) -> dict[str, Any]:
        made = asdict(self)
        made["summary"] = self.summary()
        for one in made["series"]:
            one["data"] = reduced(one["data"])
        return made

    def summary(self) -> str:
        """What a screen reader says."""
        told = [_told(one) for one in self.series if one.data]
        return f"{self.title}: {'; '.join(told) if told else 'no values yet'}"


def _told(one: Series) -> str:
    values = [y for _, y in one.data]
    last, low, high = values[-1], min(values), max(values)
    return f"{one.name} ends at {last:.4g}, between {low:.4g} and {high:.4g}"


class DrawnChart(Element, esm={"weft-chart": "../assets/chart_base"}):
    """An element that ECharts draws from values; its script mixes in assets/chart_base/index.js."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self._shown = values
        self._props["spec"] = values

    def show_values(self, values: dict[str, Any]) -> None:
        """Draw other values."""
        if values != self._shown:
            self._shown = values
            self._props["spec"] = values
            self.run_method("show", values)


class Chart(DrawnChart, component="../assets/chart.js"):
    """A chart of lines."""

    def __init__(self, spec: ChartSpec, height: int = 240) -> None:
        super().__init__(spec.as_json())
        self.style(f"--h: {height}px")

    def show(self, spec: ChartSpec) -> None:
        """Show other values."""
        self.show_values(spec.as_json())


def reduced(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """At most so many points with the same shape; see weft/report/decimation.py."""
    return decimated_points(points, most)
