"""Parallel coordinates of runs: an axis for each setting and one for the metric, a line for each run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..records import dataclass
from . import svg
from .axes import short

LOG_RATIO = 20.0  # numbers that differ by more are on a logarithmic axis
MAX_LABELS = 8
WIDTH, HEIGHT, TOP, SIDE = 1120.0, 300.0, 64.0, 90.0  # of a picture
DEFAULTS = 0.2  # the part of an axis of numbers below them, for settings that were left out


@dataclass(frozen=True)
class ParallelAxis:
    """An axis: where each run is, from 0 (below) to 1; ticks as (place, text)."""

    name: str
    places: list[float]
    ticks: list[tuple[float, str]]


def parallel_axes(
    settings: Mapping[str, Sequence[Any]], metric: str, values: Sequence[float | None]
) -> list[ParallelAxis]:
    """The axes of settings, and that of the metric at the end."""
    percent = "accuracy" in metric
    last = axis_of(metric, [v if v is None or not percent else 100 * v for v in values], " %" if percent else "")
    return [*(axis_of(name, column) for name, column in settings.items()), last]


def axis_of(name: str, column: Sequence[Any], unit: str = "") -> ParallelAxis:
    """An axis of numbers, linear or logarithmic, or of texts with equal distances. Settings that were left out are below the numbers.

    >>> axis_of("rate", [0.1, 0.001, 0.01]).places
    [1.0, 0.0, 0.5]
    >>> axis_of("optimizer", ["sgd", None, "adam"]).ticks
    [(0.0, 'adam'), (0.5, 'none'), (1.0, 'sgd')]
    """
    known = [float(v) for v in column if _is_number(v)]
    if known and all(v is None or _is_number(v) for v in column):
        return _of_numbers(name, column, known, unit)
    words = sorted({_word(v) for v in column})
    place = {word: i / max(1, len(words) - 1) if len(words) > 1 else 0.5 for i, word in enumerate(words)}
    step = max(1, math.ceil(len(words) / MAX_LABELS))
    return ParallelAxis(name, [place[_word(v)] for v in column], [(place[w], w) for w in words[::step]])


def _of_numbers(name: str, column: Sequence[Any], known: list[float], unit: str) -> ParallelAxis:
    low, high = min(known), max(known)
    log = low > 0 and high / low >= LOG_RATIO
    scale = math.log if log else float
    floor = DEFAULTS if any(v is None for v in column) else 0.0
    first, width = scale(low), (scale(high) - scale(low)) or 1.0

    def place(value: float) -> float:
        share = (scale(value) - first) / width if high > low else 0.5
        return round(floor + (1 - floor) * share, 4)

    middle = math.exp((math.log(low) + math.log(high)) / 2) if log else (low + high) / 2
    marks = dict.fromkeys([low, middle, high] if high > low else [low])
    ticks = [(0.0, "default")] if floor else []
    return ParallelAxis(
        name, [0.0 if v is None else place(float(v)) for v in column], [*ticks, *((place(v), f"{short(v)}{unit}") for v in marks)]
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _word(value: Any) -> str:
    return "none" if value is None else str(value)


def parallel_svg(axes: Sequence[ParallelAxis], marked: int | None, title: str, low_is_better: bool = False) -> str:
    """The axes with a line for each run as SVG: the better, the stronger; the `marked` one in another colour and in front."""
    step = (WIDTH - 2 * SIDE) / max(1, len(axes) - 1)
    xs = [SIDE + step * i for i in range(len(axes))]
    parts = [svg.text(16, 29, title, "title")]
    count = len(axes[-1].places) if axes else 0
    for index in sorted(range(count), key=lambda i: i == marked):
        places = [axis.places[index] for axis in axes]
        strength = 1 - places[-1] if low_is_better else places[-1]
        parts.append(
            _curve(xs, places, 1 if index == marked else 0, 1.0 if index == marked else 0.12 + 0.6 * strength**2)
        )
    for x, axis in zip(xs, axes, strict=True):
        parts.append(svg.line(x, TOP, x, TOP + HEIGHT, "axis"))
        parts.append(svg.text(x, TOP - 14, svg.fit(axis.name.replace("_", " "), step), "strong", anchor="middle"))
        gap, anchor = (8, "start") if axis is axes[-1] else (-8, "end")
        parts += [svg.text(x + gap, _y(at) + 4, svg.fit(text, 80), "soft", anchor=anchor) for at, text in axis.ticks]
    return svg.document(WIDTH, TOP + HEIGHT + 24, title, parts)


def _y(place: float) -> float:
    return TOP + (1 - place) * HEIGHT


def _curve(xs: Sequence[float], places: Sequence[float], series: int, opacity: float) -> str:
    """A smooth line through its place on each axis."""
    found = [f"M{xs[0]:.1f} {_y(places[0]):.1f}"]
    for i in range(1, len(xs)):
        bend = (xs[i] - xs[i - 1]) / 2
        found.append(
            f"C{xs[i - 1] + bend:.1f} {_y(places[i - 1]):.1f} {xs[i] - bend:.1f} {_y(places[i]):.1f} {xs[i]:.1f} {_y(places[i]):.1f}"
        )
    wide = ' style="stroke-width:3"' if opacity == 1.0 else ""
    return f'<path d="{"".join(found)}" class="s{series}" opacity="{opacity:.2f}"{wide}/>'
