"""Line charts and bar charts as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ..errors import UserError
from . import svg
from .axes import LARGEST, ChartAxis, make_axis, short

WIDTH, PLOT_HEIGHT, MARGIN = 640, 240, 16
LINE = 18  # line height of text
MAX_DOTS = 40  # a curve with more points shows no dots
MAX_LEGEND_NAMES = 12  # in a legend
MAX_BARS = 40
COLUMNS = 400  # a curve is downsampled to a few points per column
DENSE = 4 * COLUMNS  # a curve with more points is drawn pale, with its bin means in front

Points = Sequence[tuple[float, float]]


def curves(series: Mapping[str, Points], title: str, log: bool = False, *, x: str = "step", unit: str = "") -> str:
    """Curves through (x, value) points, as SVG. Values that are not finite (on a `log` axis: not positive) leave a gap.

    >>> curves({"train": [(1, 2.3), (2, 0.7)]}, "Loss")[:4]
    '<svg'
    """
    lines = {name: _sorted_points(points, log, title) for name, points in series.items()}
    legend, top = _legend(list(lines))
    across, up = _axes(lines, log)
    left = MARGIN + max(svg.text_width(label) for label in up.labels) + 8
    right = WIDTH - MARGIN - svg.text_width(across.labels[-1]) / 2
    frame = _PlotArea(across, up, left, right, top, top + PLOT_HEIGHT)
    dense = any(len(line) > DENSE for line in lines.values())
    parts = [_title(title, unit), *legend, *frame.grid(f"{x} (pale: all values, solid: means)" if dense else x)]
    if not any(np.isfinite(line[:, 1]).any() for line in lines.values()):
        parts.append(svg.text((left + right) / 2, top + PLOT_HEIGHT / 2, "no data", "soft", anchor="middle"))
    for index, (name, line) in enumerate(lines.items()):
        parts += _line(frame, line, index, name)
    return svg.document(WIDTH, frame.bottom + 2 * LINE + MARGIN, title, parts)


def scatter(
    groups: Mapping[str, Points], title: str, line: Points = (), line_name: str = "", *, x: str, unit: str = "", log_x: bool = False,
) -> str:  # fmt: skip
    """Dots in groups and a line through points, as SVG.

    >>> scatter({"finished": [(1, 0.9), (2, 0.95)]}, "Trials", x="trial")[:4]
    '<svg'
    """
    named = {**({line_name: line} if line else {}), **groups}
    lines = {name: _sorted_points(points, False, title) for name, points in named.items()}
    legend, top = _legend(list(lines))
    across, up = _axes(lines, False)
    if log_x:
        across = make_axis([x for points in lines.values() for x in points[:, 0]], log=True)
    left = MARGIN + max(svg.text_width(label) for label in up.labels) + 8
    frame = _PlotArea(across, up, left, WIDTH - MARGIN - svg.text_width(across.labels[-1]) / 2, top, top + PLOT_HEIGHT)
    parts = [_title(title, unit), *legend, *frame.grid(x)]
    for index, (name, points) in reversed(list(enumerate(lines.items()))):  # the line in front
        known = points[np.isfinite(points[:, 1])]
        if line and index == 0:
            parts.append(svg.path(frame.positions(known), index))
            if len(known) > 1:
                continue
        said = [f"{name}: {short(b, 4)} at {short(a, 6)}" for a, b in known.tolist()]
        parts += [svg.dot(*at, index, 3.2, note) for at, note in zip(frame.positions(known), said, strict=True)]
    return svg.document(WIDTH, frame.bottom + 2 * LINE + MARGIN, title, parts)


def learning_rate(points: Points, log: bool = False, *, x: str = "step") -> str:
    """A chart of the learning rate over the steps of a run."""
    return curves({"rate": points}, "Learning rate", log, x=x)


def bars(values: Mapping[str, float], title: str, *, unit: str = "", largest: float | None = None) -> str:
    """One bar per name, as SVG; `largest` is the value of a full bar. Only the first forty bars are drawn, with a note."""
    shown = dict(list(values.items())[:MAX_BARS])
    known = [v for v in shown.values() if math.isfinite(v) and abs(v) <= LARGEST]
    scale = make_axis([0.0, *known, *([] if largest is None else [largest])], tight=True)
    left = MARGIN + min(160.0, max((svg.text_width(name) for name in shown), default=0)) + 8
    right = WIDTH - MARGIN - 72
    parts, y = [_title(title, unit)], MARGIN + 2.0 * LINE
    for name, value in shown.items():
        parts += _bar(name, value, scale, left, right, y)
        y += 22
    hidden = len(values) - len(shown)
    if hidden or not shown:
        parts.append(svg.text(MARGIN, y + 12, f"and {hidden:,} more" if hidden else "no data", "soft"))
        y += 22
    return svg.document(WIDTH, y + MARGIN, title, parts)


def _bar(name: str, value: float, scale: ChartAxis, left: float, right: float, y: float) -> list[str]:
    label = svg.text(left - 8, y + 12, svg.fit(name, left - 8 - MARGIN), anchor="end", note=name)
    zero = left + scale.position(0) * (right - left)
    if not math.isfinite(value) or abs(value) > LARGEST:
        return [label, svg.text(zero + 6, y + 12, short(value), "soft")]
    end = left + scale.position(value) * (right - left)
    box = svg.rect(min(zero, end), y, max(1.0, abs(end - zero)), 16, "f0" if value >= 0 else "f1", corner=2)
    return [label, box, svg.text(max(zero, end) + 6, y + 12, short(value), "soft")]


def _sorted_points(points: Points, log: bool, title: str) -> np.ndarray:
    """Points sorted by x; values that cannot be drawn are nan."""
    try:
        line = np.asarray(points, np.float64).reshape(len(points), 2)
    except (TypeError, ValueError):
        raise UserError(
            "curves", f"points must be (x, value) pairs of numbers, got {list(points)[:3]!r} in {title!r}."
        ) from None
    line = line[np.isfinite(line[:, 0]) & (np.abs(line[:, 0]) <= LARGEST)]
    line = line[np.argsort(line[:, 0], kind="stable")]
    with np.errstate(invalid="ignore"):
        drawable = (np.abs(line[:, 1]) <= LARGEST) & ((line[:, 1] > 0) | (not log))
    line[:, 1] = np.where(drawable, line[:, 1], np.nan)
    return line


def _axes(lines: Mapping[str, np.ndarray], log: bool) -> tuple[ChartAxis, ChartAxis]:
    both = np.concatenate([np.zeros((0, 2)), *lines.values()])
    low_high = [both[:, 0].min(), both[:, 0].max()] if len(both) else []
    whole = bool((both[:, 0] == np.floor(both[:, 0])).all())
    up = both[np.isfinite(both[:, 1]), 1]
    return _x_axis(low_high, whole), make_axis([up.min(), up.max()] if len(up) else [], log=log)


def _x_axis(ends: list[float], whole: bool) -> ChartAxis:
    """The x axis, with as many ticks as their labels allow."""
    for count in (8, 5, 3, 2):
        found = make_axis(ends, count=count, tight=True, whole=whole)
        widest = max(svg.text_width(label) for label in found.labels) if found.labels else 0
        if found.labels and (widest + 16) * len(found.labels) < 0.8 * WIDTH:
            return found
    return ChartAxis(found.low, found.high, found.ticks[:1] or (found.low,), found.labels[:1] or (short(found.low),))


class _PlotArea:
    """The plot area with its axes."""

    def __init__(self, across: ChartAxis, up: ChartAxis, left: float, right: float, top: float, bottom: float) -> None:
        self.across, self.up = across, up
        self.left, self.right, self.top, self.bottom = left, right, top, bottom

    def x(self, value: float) -> float:
        """The horizontal pixel position of a value."""
        return self.left + self.across.position(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        """The vertical pixel position of a value."""
        return self.bottom - self.up.position(value) * (self.bottom - self.top)

    def positions(self, points: np.ndarray) -> list[tuple[float, float]]:
        """The pixel positions of points."""
        return [(self.x(x), self.y(y)) for x, y in points.tolist()]

    def grid(self, name: str) -> list[str]:
        """Grid lines, tick labels and the label of the x axis."""
        parts = []
        for tick, label in zip(self.up.ticks, self.up.labels, strict=True):
            parts.append(svg.line(self.left, self.y(tick), self.right, self.y(tick), "grid"))
            parts.append(svg.text(self.left - 8, self.y(tick) + 4, label, "soft", anchor="end"))
        for tick, label in zip(self.across.ticks, self.across.labels, strict=True):
            parts.append(svg.line(self.x(tick), self.bottom, self.x(tick), self.bottom + 4, "axis"))
            parts.append(svg.text(self.x(tick), self.bottom + LINE, label, "soft", anchor="middle"))
        parts.append(svg.line(self.left, self.bottom, self.right, self.bottom, "axis"))
        middle = (self.left + self.right) / 2
        parts.append(svg.text(middle, self.bottom + 2 * LINE, svg.fit(name, 300), "soft", anchor="middle"))
        return parts


def _line(frame: _PlotArea, line: np.ndarray, index: int, name: str) -> list[str]:
    dense, dots = len(line) > DENSE, len(line) <= MAX_DOTS
    parts = []
    for piece in _segments(downsample(line)):
        positions = frame.positions(piece)
        if len(positions) > 1:
            parts.append(svg.path(positions, index, pale=dense))
        if dots or len(positions) == 1:
            said = [f"{name}: {short(b, 4)} at {short(a, 6)}" for a, b in piece.tolist()]
            parts += [
                svg.dot(*place, index, 2.5 if dots else 1.8, note) for place, note in zip(positions, said, strict=True)
            ]
    if dense:
        parts += [svg.path(frame.positions(piece), index) for piece in _segments(bin_means(line))]
    return parts


def _segments(line: np.ndarray) -> list[np.ndarray]:
    """The segments between gaps."""
    known = np.flatnonzero(np.isfinite(line[:, 1]))
    return [line[run] for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1) if len(run)]


def downsample(line: np.ndarray, columns: int = COLUMNS) -> np.ndarray:
    """Fewer points with the same appearance: the first, last, lowest and highest point of each column are kept.
    A gap is kept if it spans a column: narrower ones would not be visible."""
    if len(line) <= DENSE:
        return line
    kept: set[int] = set()
    for start, end in pairwise(_bounds(line, columns)):
        known = start + np.flatnonzero(np.isfinite(line[start:end, 1]))
        values = line[known, 1]
        kept |= (
            {int(i) for i in (known[0], known[-1], known[values.argmin()], known[values.argmax()])}
            if len(known)
            else {start}
        )
    return line[sorted(kept)]


def bin_means(line: np.ndarray, columns: int = COLUMNS // 4) -> np.ndarray:
    """The mean of the points of each column; nan if there are none."""
    pieces = [line[start:end] for start, end in pairwise(_bounds(line, columns))]
    known = [piece[np.isfinite(piece[:, 1])] for piece in pieces]
    return np.array([(some if len(some) else piece).mean(axis=0) for some, piece in zip(known, pieces, strict=True)])


def _bounds(line: np.ndarray, columns: int) -> list[int]:
    """The index at which each column begins, and the end."""
    x = line[:, 0]
    column = np.minimum((x - x[0]) / max(x[-1] - x[0], 1e-300) * columns, columns - 1).astype(int)
    return [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(line)]


def _title(title: str, unit: str) -> str:
    words = svg.fit(title, WIDTH - 2 * MARGIN - 90, 16)
    after = (
        f'<tspan class="soft" style="font-size:12px;font-weight:400" dx="8">{svg.escape(svg.fit(unit, 80))}</tspan>'
        if unit
        else ""
    )
    return svg.text(MARGIN, MARGIN + 13, words, "title").replace("</text>", after + "</text>")


def _legend(names: list[str]) -> tuple[list[str], float]:
    """The legend, in rows below the title, and the top of the plot area. A single curve has no legend."""
    parts: list[str] = []
    x, y = float(MARGIN), MARGIN + 13.0 + 22
    if len(names) < 2:
        return parts, y
    for index, name in enumerate(names[:MAX_LEGEND_NAMES]):
        words = svg.fit(name, 180, middle=True)
        if x + 24 + svg.text_width(words) > WIDTH - MARGIN:
            x, y = float(MARGIN), y + LINE
        parts.append(svg.line(x, y - 4, x + 18, y - 4, f"key {svg.series_kind(index)}"))
        parts.append(svg.text(x + 24, y, words, note=name))
        x += 24 + svg.text_width(words) + 18
    if len(names) > MAX_LEGEND_NAMES:
        y += LINE
        parts.append(svg.text(MARGIN, y, f"and {len(names) - MAX_LEGEND_NAMES:,} more", "soft"))
    return parts, y + 16
