"""Charts of a sweep as places in a square: the value of each trial with the best so far, two metrics with their front, parallel coordinates."""

from __future__ import annotations

from collections.abc import Sequence

from ...jobs.sweeps.record import FINISHED, PRUNED, SweepRecord, SweepTrial, pareto_front, setting_text
from ...jobs.sweeps.results import parallel_lines
from ...jobs.sweeps.summary import best_so_far, visible_range
from ...records import dataclass
from ...report.axes import ChartAxis, make_axis
from ...report.parallel_coordinates import ParallelAxis
from ..library.sweeps import SweepSnapshot
from ..library.training_fields import setting_title
from .formats import is_share, metric_name, metric_value


@dataclass(frozen=True)
class TrialDot:
    """A trial at a place, in percent from the left and from above."""

    trial: SweepTrial
    left: float
    top: float
    text: str
    is_best: bool = False  # or a member of the front


@dataclass(frozen=True)
class TrialChart:
    """Dots, a line through the best of them, and ticks."""

    dots: list[TrialDot]
    path: str  # in a square of 1000 by 1000
    rest: str  # the line of what is to come
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    x_label: str
    clipped: int = 0  # trials that are drawn at the edge


def best_chart(view: SweepSnapshot) -> TrialChart | None:
    """The value of each trial that has ended, by number, and the best until then; None before there is one."""
    record, known = view.record, [one for one in view.trials if one.state in (FINISHED, PRUNED) and one.values]
    if record is None or not known:
        return None
    column = record.plan.metrics[0].column
    scale, steps = (100.0 if is_share(column) else 1.0), best_so_far(record, known)
    low, high = visible_range(record, known)
    planned = max(view.planned, 1)
    across = make_axis([0, planned], whole=True, tight=True, count=4)
    up = make_axis([scale * low, scale * high], count=4)
    best = view.summary.best if view.summary is not None else None

    def place(number: float, value: float) -> tuple[float, float]:
        inside = min(max(value, low), high)
        return 100 * across.position(number), 100 * (1 - up.position(scale * inside))

    dots = [
        TrialDot(one, *place(one.number, _value(one)), metric_value(column, _value(one)), best is not None and one.number == best.number)
        for one in known
    ]  # fmt: skip
    points = [(10 * x, 10 * y) for x, y in (place(*step) for step in steps)]
    last, end = 10 * place(max(one.number for one in known), 0)[0], 10 * place(planned, 0)[0]
    rest = f"M{last:.0f} {points[-1][1]:.0f}H{end:.0f}" if points and view.status != "finished" else ""
    ends_low, ends_high = low - 1e-12, high + 1e-12
    clipped = sum(not ends_low <= _value(one) <= ends_high for one in known)
    return TrialChart(dots, _steps(points, last), rest, _trial_ticks(planned), _up_ticks(up, scale), "Trial", clipped)


def front_chart(view: SweepSnapshot) -> TrialChart | None:
    """The finished trials by two metrics, and those that no other one beats in both; None with one metric."""
    record, known = view.record, [one for one in view.trials if one.state == FINISHED and one.values]
    if record is None or len(record.plan.metrics) < 2 or len(known) < 2:
        return None
    first, second = record.plan.metrics[:2]
    scale = 100.0 if is_share(first.column) else 1.0
    seconds = {one.number: (one.values or (0.0, 0.0))[1] for one in known}
    across = make_axis(seconds.values(), log=min(seconds.values()) > 0)
    up = make_axis([scale * _value(one) for one in known], count=4)
    front = {one.number for one in pareto_front(record.plan.metrics, known)}
    dots = [
        TrialDot(
            one, 100 * across.position(seconds[one.number]), 100 * (1 - up.position(scale * _value(one))),
            f"{metric_value(first.column, _value(one))}, {second.name} {setting_text(seconds[one.number])}", one.number in front,
        )
        for one in known
    ]  # fmt: skip
    line = sorted((10 * dot.left, 10 * dot.top) for dot in dots if dot.is_best)
    path = "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in line)
    return TrialChart(dots, path, "", _ticks(across), _up_ticks(up, scale), metric_name(second.column).capitalize())


def _value(one: SweepTrial) -> float:
    return (one.values or (0.0,))[0]


def _steps(points: Sequence[tuple[float, float]], end: float) -> str:
    """A line that rises in steps, and goes on to the last trial."""
    if not points:
        return ""
    parts = [f"M{points[0][0]:.0f} {points[0][1]:.0f}", *(f"H{x:.0f}V{y:.0f}" for x, y in points[1:]), f"H{end:.0f}"]
    return "".join(parts)


def _trial_ticks(planned: int) -> list[tuple[float, str]]:
    """Numbers of trials in equal steps up to the last one, or at round numbers."""
    parts = next((n for n in (4, 5, 3) if planned % n == 0), 0)
    if not parts:
        return _ticks(make_axis([0, planned], whole=True, tight=True, count=4))
    return [(100 * i / parts, f"{planned * i // parts:,}") for i in range(parts + 1)]


def _ticks(axis: ChartAxis) -> list[tuple[float, str]]:
    return [(100 * axis.position(at), label) for at, label in zip(axis.ticks, axis.labels, strict=True)]


def _up_ticks(axis: ChartAxis, scale: float) -> list[tuple[float, str]]:
    unit = " %" if scale > 1 else ""
    return [(100 - at, f"{label}{unit}") for at, label in _ticks(axis)]


# --- parallel coordinates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialPath:
    """A trial over all axes: its places from 0 (below) to 1, how good it is from 0 to 1, and what it is in words."""

    trial: SweepTrial
    places: tuple[float, ...]
    rank: float
    text: str
    is_best: bool

    def path(self) -> str:
        """The line in a square of 1000 by 1000, curved between the axes."""
        width = 1000 / max(1, len(self.places) - 1)
        parts = [f"M0 {1000 * (1 - self.places[0]):.0f}"]
        for i in range(1, len(self.places)):
            before, here, x = 1000 * (1 - self.places[i - 1]), 1000 * (1 - self.places[i]), width * i
            parts.append(f"C{x - 0.56 * width:.0f} {before:.0f} {x - 0.44 * width:.0f} {here:.0f} {x:.0f} {here:.0f}")
        return "".join(parts)


@dataclass(frozen=True)
class ParallelTrials:
    """Axes with titles, and a line for each trial, the best one last: it is drawn above the others."""

    axes: list[tuple[str, ParallelAxis]]
    lines: list[TrialPath]


def parallel_trials(view: SweepSnapshot) -> ParallelTrials | None:
    """The trials with a value over the settings that are searched, and the metric; None before there are two."""
    if view.record is None or view.summary is None:
        return None
    numbers, axes = parallel_lines(view.record, view.trials)
    if len(numbers) < 2:
        return None
    metric, trials = axes[-1], {one.number: one for one in view.trials}
    order = sorted(set(metric.places), reverse=not view.record.plan.metrics[0].maximize)
    rank = {place: i / max(1, len(order) - 1) for i, place in enumerate(order)}
    best = view.summary.best.number if view.summary.best is not None else None
    lines = [
        TrialPath(trials[n], tuple(axis.places[i] for axis in axes), rank[metric.places[i]], trial_text(view.record, trials[n]), n == best)
        for i, n in enumerate(numbers)
    ]  # fmt: skip
    lines.sort(key=lambda line: (line.is_best, line.rank))
    return ParallelTrials([(_axis_title(axis.name, metric), axis) for axis in axes], lines)


def _axis_title(name: str, metric: ParallelAxis) -> str:
    text = metric_name(name) if name == metric.name else setting_title(name)
    return text[:1].upper() + text[1:]


def trial_text(record: SweepRecord, trial: SweepTrial) -> str:
    """A trial in one line: its settings and what it has reached."""
    settings = [f"{setting_title(name).lower()} {setting_text(value)}" for name, value in trial.settings.items()]
    values = [
        f"{metric_name(metric.column)} {metric_value(metric.column, value)}"
        for metric, value in zip(record.plan.metrics, trial.values or (), strict=False)
    ]
    state = ", stopped early" if trial.state == PRUNED else ""
    return f"Trial {trial.number}{state}: {', '.join([*settings, *values])}"
