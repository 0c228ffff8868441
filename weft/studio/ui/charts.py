"""Charts of lines, drawn by ECharts in the browser in the colours of the theme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nicegui.element import Element
from nicegui.elements.echart import EChart  # registers ECharts, which chart.js imports

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


@dataclass(frozen=True)
class ChartSpec:
    """What a chart shows. `format`: number, percent or bytes."""

    title: str
    series: Sequence[Series]
    format: str = "number"
    x: dict[str, Any] = field(default_factory=dict)  # label, max, whole
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
        ends = [f"{one.name} ends at {one.data[-1][1]:.4g}" for one in self.series if one.data]
        return f"{self.title}: {', '.join(ends) if ends else 'no values yet'}"


class Chart(Element, component="../assets/chart.js"):
    """A chart as an element of a page."""

    def __init__(self, spec: ChartSpec, height: int = 240) -> None:
        super().__init__()
        self._shown = spec.as_json()
        self._props["spec"] = self._shown
        self.style(f"--h: {height}px")

    def show(self, spec: ChartSpec) -> None:
        """Show other values."""
        made = spec.as_json()
        if made != self._shown:
            self._shown = made
            self._props["spec"] = made
            self.run_method("show", made)

    def set(self, **settings: Any) -> None:
        """Settings of the view: smoothing from 0 to 1, log."""
        self.run_method("set", settings)

    def save(self, name: str) -> None:
        """Let the browser download the picture."""
        self.run_method("save", name)


def reduced(points: Sequence[tuple[float, float]], most: int = MOST) -> list[tuple[float, float]]:
    """At most so many points with the same shape: in each of equal parts, the smallest and the largest value stay.

    >>> reduced([(i, i % 7) for i in range(10)], 4)
    [(0, 0), (4, 4), (6, 6), (7, 0)]
    """
    if len(points) <= most:
        return list(points)
    parts, found = max(1, most // 2), []
    for i in range(parts):
        part = points[i * len(points) // parts : (i + 1) * len(points) // parts]
        found += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return found
