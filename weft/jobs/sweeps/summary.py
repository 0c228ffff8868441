"""A sweep in numbers: how many trials have ended and how, what the best ones have in common, what early stopping has saved, what is left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from ...records import dataclass
from .record import PRUNED, RUNNING, SweepRecord, SweepTrial, best_first, best_trial, setting_text
from .search_space import ChoiceDimension, Dimension
from .settings import SweepPlan

ENOUGH = 8  # finished trials, before the ranges of the best ones mean anything
CLIP = 5.0  # times the distance of the best value from the median: worse trials are drawn at the end of an axis


@dataclass(frozen=True)
class SweepSummary:
    """What the trials of a sweep come to. Values are of the first metric; durations are in seconds of training."""

    counts: Counter[str]  # trials by state
    best: SweepTrial | None
    median: float | None  # of the finished trials
    saved: float  # by stopping trials early, as long as their epochs took before
    left: float | None  # until all trials have ended; None if nothing is known
    best_ranges: dict[str, str]  # of settings, among the best quarter


def sweep_summary(record: SweepRecord, trials: Sequence[SweepTrial], durations: Sequence[float] = ()) -> SweepSummary:
    """The summary of these trials. `durations`: seconds that trials took with their start and their end, if somebody has measured them."""
    plan = record.plan
    finished = [one for one in best_first(plan.metrics, trials) if one.state != PRUNED]
    middle = median(one.values[0] for one in finished if one.values) if finished else None
    return SweepSummary(
        Counter(one.state for one in trials), best_trial(plan.metrics, trials), middle, sum(map(_saved, trials)), _left(plan, trials, durations),
        {one.name: text for one in plan.space if (text := _best_range(one, finished))},
    )  # fmt: skip


def current_value(record: SweepRecord, trial: SweepTrial) -> float | None:
    """The first metric of a trial: its result, or the best epoch so far while it runs."""
    if trial.values is not None:
        return trial.values[0]
    known = [value for value in trial.trend if math.isfinite(value)]
    return (max(known) if record.plan.metrics[0].maximize else min(known)) if known else None


def best_so_far(record: SweepRecord, trials: Sequence[SweepTrial]) -> list[tuple[int, float]]:
    """The finished trials that were better than all before them: numbers and values."""
    sign, steps = (1 if record.plan.metrics[0].maximize else -1), list[tuple[int, float]]()
    finished = {one.number for one in best_first(record.plan.metrics, trials) if one.state != PRUNED}
    for one in sorted(trials, key=lambda one: one.number):
        value = one.values[0] if one.values and one.number in finished else None
        if value is not None and (not steps or sign * value > sign * steps[-1][1]):
            steps.append((one.number, value))
    return steps


def visible_range(record: SweepRecord, trials: Sequence[SweepTrial]) -> tuple[float, float]:
    """The ends of an axis of the first metric, for trials that have a value: a few bad trials must not press all others together."""
    values = [one.values[0] for one in trials if one.values and math.isfinite(one.values[0])]
    low, high = min(values), max(values)
    best = high if record.plan.metrics[0].maximize else low
    spread = CLIP * abs(best - median(values))
    if spread == 0:
        return low, high
    return (max(low, best - spread), high) if record.plan.metrics[0].maximize else (low, min(high, best + spread))


def _saved(trial: SweepTrial) -> float:
    """How long the epochs would have taken that a trial was spared."""
    if trial.state != PRUNED or not trial.epoch or not trial.epochs or trial.seconds is None:
        return 0.0
    return trial.seconds / trial.epoch * max(0, trial.epochs - trial.epoch)


def _left(plan: SweepPlan, trials: Sequence[SweepTrial], durations: Sequence[float]) -> float | None:
    """The mean duration of trials that have ended, for all that have not; those that run have a part of it behind them."""
    ended = durations or [one.seconds for one in trials if one.has_ended and one.seconds]
    if not ended:
        return None
    begun = sum(one.epoch / one.epochs for one in trials if one.state == RUNNING and one.epochs)
    missing = plan.trials - sum(one.has_ended for one in trials) - begun
    return max(0.0, missing) * fmean(ended) / plan.jobs


def _best_range(one: Dimension, finished: Sequence[SweepTrial]) -> str:
    """The values of a setting in the best quarter of the finished trials; nothing with few trials, or if all values are among them."""
    if len(finished) < ENOUGH:
        return ""
    values = [trial.settings[one.name] for trial in finished[: max(3, len(finished) // 4)]]
    if isinstance(one, ChoiceDimension):
        chosen = [setting_text(value) for value in dict.fromkeys(values)]
        return ", ".join(chosen) if len(chosen) < len(one.values) else ""
    low, high = setting_text(min(values)), setting_text(max(values))
    return low if low == high else f"{low} to {high}"
