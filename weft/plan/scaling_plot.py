"""A scaling plan as a plot: efficiency over the number of ranks, a line for each kind of split."""

from __future__ import annotations

from ..insight.profile_text import duration
from ..report import svg
from ..report.axes import ChartAxis, make_axis, short
from .scaling_plan import ScalingPlan, family
from .splits import ParallelSplit
from .step_time import StepPrediction

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 216, 56, 52
LABELS = 14  # tick labels of the axis of ranks


def scaling_svg(plan: ScalingPlan) -> str:
    """Efficiency over the number of ranks, for the families of splits; a ring marks splits that do not fit into memory."""
    names = list(dict.fromkeys(family(row.split) for row in plan.of(plan.ranks[-1]) if _drawn(row.split)))
    across = _across(plan.ranks)
    up = make_axis([0.0, 1.0])
    title = f"{plan.subject or 'Scaling'} on {plan.title}, predicted"
    parts = [svg.text(16, 24, svg.fit(title, WIDTH - 32), note=title), *_grid(across, up)]
    for number, name in enumerate(names):
        rows = [row for n in plan.ranks for row in plan.of(n) if family(row.split) == name]
        places = [(_x(across, row.split.ranks), _y(up, row.efficiency)) for row in rows]
        if len(places) > 1:
            parts.append(svg.path(places, number))
        parts += [svg.dot(*p, number, 3.5 if plan.fits(r) else 1.8, _note(plan, r)) for p, r in zip(places, rows, strict=True)]  # fmt: skip
        y = TOP + 8 + 20 * number
        parts += [svg.dot(WIDTH - RIGHT + 24, y - 4, number, 4), svg.text(WIDTH - RIGHT + 34, y, name)]
    parts.append(svg.text(WIDTH - RIGHT + 18, HEIGHT - BOTTOM, "small dot: does not fit", "soft"))
    return svg.document(WIDTH, HEIGHT, title, parts)


def _drawn(split: ParallelSplit) -> bool:
    """Sharded state is drawn for pure data parallelism only: elsewhere its lines would coincide with others."""
    return not split.zero or (split.zero == 2 and split.model == split.pipeline == 1)


def _note(plan: ScalingPlan, row: StepPrediction) -> str:
    memory = "" if plan.fits(row) else ", does not fit into memory"
    return (
        f"{row.split}: {row.efficiency:.1%}, {duration(row.seconds)} a step, {short(row.per_second)} examples/s{memory}"
    )


def _across(ranks: list[int]) -> ChartAxis:
    ticks = [ranks[i * (len(ranks) - 1) // max(1, min(LABELS, len(ranks)) - 1)] for i in range(min(LABELS, len(ranks)))]
    low, high = float(ranks[0]), float(max(ranks[-1], ranks[0] + 1))
    return ChartAxis(low, high, tuple(map(float, ticks)), tuple(map(_ranks_text, ticks)), log=True)


def _ranks_text(ranks: int) -> str:
    """
    >>> _ranks_text(512), _ranks_text(4096)
    ('512', '4k')
    """
    return f"{ranks // 1024}k" if ranks % 1024 == 0 else f"{ranks:,}"


def _x(axis: ChartAxis, value: float) -> float:
    return LEFT + 8 + axis.position(value) * (WIDTH - LEFT - RIGHT - 8)


def _y(axis: ChartAxis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.position(min(1.02, value)) * (HEIGHT - TOP - BOTTOM)


def _grid(across: ChartAxis, up: ChartAxis) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [svg.line(LEFT, bottom, right, bottom, "axis")]
    for tick in up.ticks:
        parts.append(svg.line(LEFT, _y(up, tick), right, _y(up, tick), "grid"))
        parts.append(svg.text(LEFT - 8, _y(up, tick) + 4, f"{tick:.0%}", "soft", anchor="end"))
    for tick, label in zip(across.ticks, across.labels, strict=True):
        parts.append(svg.line(_x(across, tick), bottom, _x(across, tick), bottom + 4, "axis"))
        parts.append(svg.text(_x(across, tick), bottom + 18, label, "soft", anchor="middle"))
    parts.append(svg.text((LEFT + right) / 2, bottom + 38, "ranks", "soft", anchor="middle"))
    parts.append(svg.text(16, TOP - 12, "efficiency", "soft"))
    return parts
