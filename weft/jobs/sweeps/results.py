"""Results of a sweep: importance of settings and parallel coordinates, as JSON and as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...io.files import replace_file
from ...report.axes import make_axis, short
from ...report.parallel_coordinates import ParallelAxis
from ...report.sweep_page import SweepPage, TrialLine, sweep_page
from .record import SweepRecord, SweepTrial, best_first, best_trial, metric_text, pareto_front, setting_text
from .search_space import ChoiceDimension, Dimension, setting_value
from .summary import visible_range


def write_results(record: SweepRecord, trials: Sequence[SweepTrial], importance: Mapping[str, float]) -> None:
    """Write importance.json, parallel.json and report.html."""
    record.write_json("importance.json", {"metric": record.plan.metrics[0].column, "method": "PED-ANOVA", "importance": dict(importance)})  # fmt: skip
    shown, axes = parallel_lines(record, trials)
    record.write_json("parallel.json", {"trials": shown, "axes": [asdict(axis) for axis in axes]})
    page = sweep_page(_page(record, trials, importance, shown, axes))
    replace_file(record.folder / "report.html", [page.encode("utf-8", "replace")], "sweep")


def parallel_lines(record: SweepRecord, trials: Sequence[SweepTrial]) -> tuple[list[int], list[ParallelAxis]]:
    """The numbers of the trials that have a value, and the axes: a place for each of them on each. Axes of settings are as wide as what is searched."""
    known = [one for one in trials if one.values is not None and math.isfinite(one.values[0])]
    if not known:
        return [], []
    axes = [_setting_axis(one, [trial.settings[one.name] for trial in known]) for one in record.plan.space]
    return [one.number for one in known], [*axes, _metric_axis(record, known)]


def _setting_axis(one: Dimension, column: Sequence[Any]) -> ParallelAxis:
    """A list has equal distances in its own order; a range is linear or logarithmic, as it is searched."""
    if isinstance(one, ChoiceDimension):
        place = {setting_value(one.name, text): _share(i, 0, len(one.values) - 1) for i, text in enumerate(one.values)}
        ticks = [(at, setting_text(value)) for value, at in place.items()]
        return ParallelAxis(one.name, [place[value] for value in column], ticks)
    scale = math.log if one.log else float
    low, high = scale(one.low), scale(one.high)
    marks = _powers(one.low, one.high) if one.log else make_axis([one.low, one.high], tight=True, count=4).ticks
    ticks = [(_share(scale(mark), low, high), short(mark)) for mark in marks]
    return ParallelAxis(one.name, [_share(scale(value), low, high) for value in column], ticks)


def _metric_axis(record: SweepRecord, known: Sequence[SweepTrial]) -> ParallelAxis:
    """The axis of the first metric; trials that are much worse than the others are at its end."""
    metric = record.plan.metrics[0]
    percent = 100.0 if "accuracy" in metric.name else 1.0
    low, high = visible_range(record, known)
    axis = make_axis([percent * low, percent * high], count=4)
    places = [round(axis.position(percent * min(max((one.values or (low,))[0], low), high)), 4) for one in known]
    unit = " %" if percent > 1 else ""
    marks = list(zip(axis.ticks, axis.labels, strict=True))
    return ParallelAxis(metric.column, places, [(round(axis.position(at), 4), f"{text}{unit}") for at, text in marks])


def _powers(low: float, high: float) -> list[float]:
    """The powers of ten of a range; its ends if there are fewer than two."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    found = [float(f"1e{power}") for power in range(first, last + 1, max(1, (last - first) // 4))]
    return found if len(found) > 1 else [low, high]


def _share(value: float, low: float, high: float) -> float:
    return round((value - low) / (high - low), 4) if high > low else 0.5


def _page(
    record: SweepRecord, trials: Sequence[SweepTrial], importance: Mapping[str, float], shown: list[int], axes: list[ParallelAxis]
) -> SweepPage:  # fmt: skip
    metrics, best = record.plan.metrics, best_trial(record.plan.metrics, trials)
    ranked = best_first(metrics, trials)
    rest = [one for one in trials if one not in ranked]
    lines = [
        TrialLine(
            one.number, one.state, {name: setting_text(value) for name, value in one.settings.items()},
            tuple(metric_text(m, v) for m, v in zip(metrics, one.values or (), strict=False)), one.why, one.epoch, one.seconds,
            None if one.values is None else one.values[0], None if one.values is None or len(one.values) < 2 else one.values[1],
        )
        for one in (*rest, *ranked)
    ]  # fmt: skip
    front = [one.number for one in pareto_front(metrics, trials)] if len(metrics) > 1 else []
    return SweepPage(
        record.name, [m.name for m in metrics], metrics[0].maximize, record.plan.sampler, record.plan.pruner, record.plan.trials, lines,
        None if best is None else best.number, None if best is None else best.run, dict(importance), axes, shown, front,
    )  # fmt: skip
