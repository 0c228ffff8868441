"""A throughput plot: examples per second over the batch size, both axes logarithmic."""

from __future__ import annotations

from collections.abc import Sequence

from ..report import svg
from ..report.axes import ChartAxis, make_axis, short
from .profile_text import duration
from .throughput_table import ThroughputRow

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 48


def throughput_svg(rows: Sequence[ThroughputRow], title: str = "Throughput") -> str:
    """Examples per second over the batch size, a line for each device, both axes logarithmic."""
    series = list(dict.fromkeys((row.device, row.what) for row in rows))
    across = make_axis([float(row.batch) for row in rows], log=True)
    across = ChartAxis(across.low, across.high, *_batch_ticks(rows), log=True)
    up = make_axis([row.per_second for row in rows], log=True)
    parts = [svg.text(16, 24, svg.fit(title, WIDTH - 32), note=title), *_grid(across, up), *_legend(series)]
    for number, key in enumerate(series):
        own = sorted((row for row in rows if (row.device, row.what) == key), key=lambda row: row.batch)
        places = [(_x(across, row.batch), _y(up, row.per_second)) for row in own]
        parts.append(svg.path(places, number))
        parts += [
            svg.dot(
                *place,
                number,
                3.5,
                f"{row.device}, batch {row.batch}: {short(row.per_second)}/s, p50 {duration(row.p50)}",
            )
            for place, row in zip(places, own, strict=True)
        ]
    return svg.document(WIDTH, HEIGHT, title, parts)


def _batch_ticks(rows: Sequence[ThroughputRow]) -> tuple[tuple[float, ...], tuple[str, ...]]:
    batches = sorted({row.batch for row in rows})
    return tuple(map(float, batches)), tuple(map(str, batches))


def _x(axis: ChartAxis, value: float) -> float:
    return LEFT + axis.position(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: ChartAxis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.position(value) * (HEIGHT - TOP - BOTTOM)


def _grid(across: ChartAxis, up: ChartAxis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [svg.line(LEFT, bottom, right, bottom, "axis")]
    for tick, label in zip(up.ticks, up.labels, strict=True):
        parts.append(svg.line(LEFT, _y(up, tick), right, _y(up, tick), "grid"))
        parts.append(svg.text(LEFT - 8, _y(up, tick) + 4, label, "soft", anchor="end"))
    for tick, label in zip(across.ticks, across.labels, strict=True):
        parts.append(svg.line(_x(across, tick), bottom, _x(across, tick), bottom + 4, "axis"))
        parts.append(svg.text(_x(across, tick), bottom + 18, label, "soft", anchor="middle"))
    parts.append(svg.text((LEFT + right) / 2, bottom + 38, "batch size", "soft", anchor="middle"))
    parts.append(svg.text(16, TOP - 10, "examples a second", "soft"))
    return parts


def _legend(series: Sequence[tuple[str, str]]) -> list[str]:
    parts, x = [], LEFT + 160.0
    for number, (device, what) in enumerate(series):
        name = f"{device}, {what}"
        parts += [svg.dot(x, TOP - 14, number, 4), svg.text(x + 10, TOP - 10, name)]
        x += svg.text_width(name) + 34
    return parts
