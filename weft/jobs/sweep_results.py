"""What a sweep has found: importance of settings and parallel coordinates, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ..io.files import replace_file
from ..report.parallel_coordinates import ParallelAxis, parallel_axes
from ..report.sweep_page import SweepPage, TrialLine, sweep_page
from .schema import as_text
from .sweep_record import SweepRecord, SweepTrial, best_first, best_trial, metric_text, pareto_front, setting_text


def write_results(record: SweepRecord, trials: Sequence[SweepTrial], importance: Mapping[str, float]) -> None:
    """Write importance.json, parallel.json and report.html."""
    record.write_json("importance.json", {"metric": record.plan.metrics[0].column, "method": "PED-ANOVA", "importance": dict(importance)})  # fmt: skip
    shown, axes = parallel_lines(record, trials)
    record.write_json("parallel.json", {"trials": shown, "axes": [asdict(axis) for axis in axes]})
    page = sweep_page(_page(record, trials, importance, shown, axes))
    replace_file(record.folder / "report.html", [page.encode("utf-8", "replace")], "sweep")


def parallel_lines(record: SweepRecord, trials: Sequence[SweepTrial]) -> tuple[list[int], list[ParallelAxis]]:
    """The numbers of the trials that have a value, and the axes: a place for each of them on each."""
    known = [one for one in trials if one.values is not None]
    if not known:
        return [], []
    columns = {one.name: [trial.settings[one.name] for trial in known] for one in record.plan.space}
    texts = {name: [as_text(v) if isinstance(v, tuple) else v for v in column] for name, column in columns.items()}
    metric = record.plan.metrics[0]
    return [one.number for one in known], parallel_axes(texts, metric.column, [(one.values or (None,))[0] for one in known])  # fmt: skip


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
