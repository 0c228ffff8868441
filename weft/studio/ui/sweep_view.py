"""A sweep in figures and rows: the strip of metrics, the table of trials, and how each is sorted and filtered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...jobs.sweeps.record import (
    FAILED,
    FINISHED,
    PRUNED,
    RUNNING,
    WAITING,
    SweepRecord,
    SweepTrial,
    best_first,
    setting_text,
)
from ...jobs.sweeps.summary import current_value, visible_range
from ...records import dataclass
from ..library.sweeps import SweepSnapshot
from ..library.training_fields import setting_title
from .formats import duration, is_share, metric_name, metric_value

STATES = {"": "All", FINISHED: "Finished", PRUNED: "Pruned", FAILED: "Failed"}
FIRST_FINISHED, FIRST_OTHERS = 9, 4  # rows before somebody asks for all
RANDOM_FIRST = 10  # trials of Optuna's TPE sampler before it is guided by results
SAMPLERS = {"tpe": "Bayesian", "random": "Random", "grid": "Grid", "cmaes": "CMA-ES", "nsga2": "NSGA-II"}
SAMPLER_FACTS = {
    "tpe": f"{RANDOM_FIRST} random, then guided", "random": "each trial by chance", "grid": "every combination once",
    "cmaes": "evolution of a covariance", "nsga2": "evolution of a Pareto front",
}  # fmt: skip
PRUNERS = {
    "median": "Pruned: behind the median of the others at the same epoch", "hyperband": "Pruned: not among the best of its Hyperband bracket",
    "none": "No trial is stopped early",
}  # fmt: skip


@dataclass(frozen=True)
class SweepTile:
    """A cell of the strip: title, number, unit, and a line of context."""

    title: str
    number: str
    unit: str
    context: str
    tone: str = ""


def sweep_tiles(view: SweepSnapshot) -> list[SweepTile]:
    """The best value, how far it is above the median, how many trials have ended, and how it is searched."""
    if view.record is None or view.summary is None:
        return []
    plan, summary, column = view.record.plan, view.summary, view.record.plan.metrics[0].column
    best, counts = summary.best, summary.counts
    value = best.values[0] if best is not None and best.values else None
    number, _, unit = metric_value(column, value).partition(" ")
    first = next(iter(view.importance), plan.space[0].name)
    about = (
        ""
        if best is None
        else f"trial {best.number}, {setting_title(first).lower()} {setting_text(best.settings[first])}"
    )
    failed = f", {counts[FAILED]} failed" if counts[FAILED] else ""
    saved = (
        f"{duration(summary.saved)} saved"
        if counts[PRUNED]
        else "no trial stopped early"
        if plan.pruner != "none"
        else "not searched with a pruner"
    )
    tiles = [
        SweepTile(f"Best {metric_name(column)}", number, unit, about or "no trial has finished yet", "up" if best else ""),
        SweepTile("Gain over the median", *_gain(view, value)),
        SweepTile("Finished", str(counts[FINISHED]), _trials(counts[FINISHED]), f"of {plan.trials}{failed}"),
        SweepTile("Pruned", str(counts[PRUNED]), _trials(counts[PRUNED]), saved),
        SweepTile("Search", SAMPLERS[plan.sampler], "", SAMPLER_FACTS[plan.sampler]),
    ]  # fmt: skip
    return tiles


def _trials(count: int) -> str:
    return "trial" if count == 1 else "trials"


def _gain(view: SweepSnapshot, best: float | None) -> tuple[str, str, str]:
    """Number, unit and context of the distance between the best trial and the median."""
    assert view.record is not None
    assert view.summary is not None
    column, middle = view.record.plan.metrics[0].column, view.summary.median
    if best is None or middle is None:
        return "–", "", "no trial has finished yet"
    distance, context = abs(best - middle), f"median {metric_value(column, middle)}"
    return (f"{100 * distance:.1f}", "points", context) if is_share(column) else (metric_value(column, distance), "", context)  # fmt: skip


def segments(view: SweepSnapshot) -> list[str]:
    """One class for each trial: finished, pruned, failed, running, or nothing for one that is to come."""
    short = {FINISHED: "d", PRUNED: "p", FAILED: "f", RUNNING: "n", WAITING: "n"}
    states = {one.number: short.get(one.state, "") for one in view.trials}
    return [states.get(number, "") for number in range(1, max(view.planned, len(view.trials)) + 1)]


# --- the table ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialRow:
    """A row of the table."""

    trial: SweepTrial
    value: str
    share: float  # length of the bar, from 0 to 1
    settings: tuple[str, ...]
    run: str | None  # its name in the index
    is_best: bool


@dataclass(frozen=True)
class TrialQuery:
    """What a user wants to see: trials of one state, sorted by a column; all rows, or the first ones."""

    state: str = ""
    sort: str = ""  # "": those that run first, then the best
    down: bool = True
    all_rows: bool = False


def trial_rows(view: SweepSnapshot, query: TrialQuery, runs: Any) -> list[TrialRow]:
    """The rows in their order. `runs` finds the name of a run by its folder."""
    if view.record is None or view.summary is None:
        return []
    record, names = view.record, [one.name for one in view.record.plan.space]
    shown = [one for one in ordered_trials(view, query) if not query.state or one.state == query.state]
    values = {one.number: current_value(record, one) for one in view.trials}
    ends = visible_range(record, view.trials) if any(one.values for one in view.trials) else None
    best, metric = view.summary.best, record.plan.metrics[0]
    return [
        TrialRow(
            one, metric_value(metric.column, values[one.number]), _bar(values[one.number], ends, metric.maximize),
            tuple(setting_text(one.settings[name]) if name in one.settings else "–" for name in names),
            runs(one.run) if one.run else None, best is not None and one.number == best.number,
        )
        for one in shown
    ]  # fmt: skip


def first_rows(rows: Sequence[TrialRow], query: TrialQuery) -> list[TrialRow]:
    """The rows that are shown at first: trials that run, the best ones, and a few that were stopped early or have failed."""
    if query.all_rows:
        return list(rows)
    if query.sort or query.state:
        return list(rows[: FIRST_FINISHED + FIRST_OTHERS])
    finished = [row for row in rows if row.trial.state == FINISHED][:FIRST_FINISHED]
    others = [row for row in rows if row.trial.state in (PRUNED, FAILED)][:FIRST_OTHERS]
    return [*(row for row in rows if not row.trial.has_ended), *finished, *others]


def ordered_trials(view: SweepSnapshot, query: TrialQuery) -> list[SweepTrial]:
    """Trials that run first, then by the column that was chosen; else the best ones, the pruned ones, and those that have failed."""
    assert view.record is not None
    active = [one for one in view.trials if not one.has_ended]
    ranked = best_first(view.record.plan.metrics, view.trials)
    rest = [one for one in view.trials if one.has_ended and one not in ranked]
    ended = [*ranked, *rest]
    if query.sort:
        ended = _sorted(view.record, ended, query)
    return [*active, *ended]


def _sorted(record: SweepRecord, trials: Sequence[SweepTrial], query: TrialQuery) -> list[SweepTrial]:
    """By one column; missing values are last."""

    def key(one: SweepTrial) -> Any:
        if query.sort == "trial":
            return one.number
        if query.sort == "value":
            return current_value(record, one)
        return one.seconds if query.sort == "time" else one.settings.get(query.sort)

    known = [one for one in trials if key(one) is not None]
    is_text = any(isinstance(key(one), str | tuple | bool) for one in known)
    known.sort(key=lambda one: setting_text(key(one)) if is_text else key(one), reverse=query.down)
    return [*known, *(one for one in trials if key(one) is None)]


def _bar(value: float | None, ends: tuple[float, float] | None, maximize: bool) -> float:
    """The length of the bar of a value: a tenth for the worst trials, all of it for the best."""
    if value is None or not math.isfinite(value) or ends is None:
        return 0.0
    low, high = ends
    share = (min(max(value, low), high) - low) / (high - low) if high > low else 1.0
    return 0.1 + 0.9 * (share if maximize else 1.0 - share)
