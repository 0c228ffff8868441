"""The trials of a sweep as text: a live table on a terminal, a line for each change elsewhere, and the result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from shlex import quote
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from ..jobs.sweeps.record import (
    RUNNING,
    WAITING,
    SweepRecord,
    SweepTrial,
    best_first,
    metric_text,
    pareto_front,
    setting_text,
)
from ..jobs.sweeps.sweep import SweepResult
from ..report.axes import duration
from ..report.text_format import counted
from .display import Display
from .table import table

REFRESHES = 4  # a second
OTHER_LINES = 6  # of the terminal besides the rows of the table
BARS = " ▁▂▃▄▅▆▇█"


class SweepDisplay:
    """Shows a sweep while it runs; called with its trials when they change. A context manager."""

    def __init__(self, quiet: bool = False) -> None:
        self._display, self._quiet = Display(sys.stdout), quiet
        self.live = self._display.live and not quiet
        self._states: dict[int, str] | None = None
        self._screen = Live(console=self._display.console, refresh_per_second=REFRESHES, transient=True)

    def __enter__(self) -> SweepDisplay:
        if self.live:
            self._screen.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self._screen.stop()

    def __call__(self, record: SweepRecord, trials: Sequence[SweepTrial]) -> None:
        if self.live:
            rows = max(3, self._display.console.height - OTHER_LINES)
            head = Text(f"{record.name}: {_counts(trials, record.plan.trials)}", "bold")
            self._screen.update(Group(head, Text(""), Text.from_ansi(trial_table(record, trials, rows))))
        elif not self._quiet:
            self._print_changes(record, trials)

    def _print_changes(self, record: SweepRecord, trials: Sequence[SweepTrial]) -> None:
        if self._states is None:
            self._states = {one.number: one.state for one in trials if one.has_ended}
            done = f", {len(self._states)} done" if self._states else ""
            self._display.line(f"sweep {record.name}: {counted(record.plan.trials, 'trial')}{done}; {record.plan.sampler}, pruner {record.plan.pruner}")  # fmt: skip
        for one in trials:
            if self._states.get(one.number) != one.state and one.state != WAITING:
                self._states[one.number] = one.state
                self._display.line(trial_line(record, one))


def trial_line(record: SweepRecord, one: SweepTrial) -> str:
    """A trial in a line."""
    settings = " ".join(f"{name}={setting_text(value)}" for name, value in one.settings.items())
    found = ", ".join(
        f"{m.name} {metric_text(m, v)}" for m, v in zip(record.plan.metrics, one.values or (), strict=False)
    )
    return "  ".join(filter(None, [f"trial {one.number}: {_state(one)}", found, settings]))


def trial_table(record: SweepRecord, trials: Sequence[SweepTrial], rows: int | None = None) -> str:
    """A table of the trials: those that run first, then the best, then the others; `rows` of them."""
    plan = record.plan
    running = [one for one in trials if one.state in (RUNNING, WAITING)]
    ranked = best_first(plan.metrics, trials)
    order = [*running, *ranked, *(one for one in trials if one not in running and one not in ranked)]
    titles = ["trial", "state", *(metric.name for metric in plan.metrics), "trend", *(one.name for one in plan.space), "epoch", "time"]  # fmt: skip
    lines = [_cells(record, one) for one in order[:rows]]
    text = table(titles, lines, left=("state", "trend"))
    hidden = len(order) - len(lines)
    return f"{text}\nand {hidden} more" if hidden else text


def _cells(record: SweepRecord, one: SweepTrial) -> list[str]:
    metrics = record.plan.metrics
    values = one.values or ((one.trend[-1],) if one.trend else ())
    shown = [metric_text(metric, value) for metric, value in zip(metrics, values, strict=False)]
    return [
        str(one.number), _state(one), *shown, *[""] * (len(metrics) - len(shown)), trend_text(one.trend),
        *(setting_text(one.settings.get(dimension.name)) for dimension in record.plan.space),
        f"{one.epoch}/{one.epochs}" if one.epochs else "", "" if one.seconds is None else duration(one.seconds),
    ]  # fmt: skip


def trend_text(values: Sequence[float], width: int = 12) -> str:
    """Values as a row of bars.

    >>> trend_text([0.1, 0.5, 0.9])
    '▁▅█'
    """
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    shown = values[step - 1 :: step] or values[-1:]
    low, high = min(values), max(values)
    return "".join(BARS[1 + round(7 * ((v - low) / (high - low) if high > low else 1.0))] for v in shown)


def _state(one: SweepTrial) -> str:
    return f"{one.state} {one.why}".rstrip()


def _counts(trials: Sequence[SweepTrial], planned: int) -> str:
    states = [one.state for one in trials]
    told = [f"{states.count(state)} {state}" for state in dict.fromkeys(states)]
    return f"{len(trials)} of {counted(planned, 'trial')}: {', '.join(told)}" if told else counted(planned, "trial")


def result_lines(result: SweepResult) -> list[str]:
    """The result of a sweep, and the next commands."""
    record, best = result.record, result.best
    lines = [f"{record.name}: {_counts(result.trials, record.plan.trials)}"]
    left = [str(one.number) for one in result.trials if not one.has_ended]
    if left:
        lines.append(f"not ended: trial {', '.join(left)}; continue with: weft sweep {quote(record.name)}")
    if best is None or best.run is None:
        return lines
    lines.append(f"best: {trial_line(record, best).replace(': finished', '')}")
    front = pareto_front(record.plan.metrics, result.trials) if len(record.plan.metrics) > 1 else []
    lines += [f"  no trial beats {trial_line(record, one).replace(': finished', '')}" for one in front]
    mattered = _importance(record)
    if mattered:
        lines.append("what mattered: " + ", ".join(f"{name} {100 * share:.0f} %" for name, share in mattered.items()))
    run = quote(min(best.run, os.path.relpath(best.run), key=len))
    return [
        *lines,
        f"report:    {record.folder / 'report.html'}",
        f"predict:   weft predict {run} IMAGE",
        f"evaluate:  weft eval {run}",
    ]


def result_facts(result: SweepResult) -> dict[str, Any]:
    """The result of a sweep as JSON holds it."""
    record, best = result.record, result.best
    shown = "" if best is None or best.values is None else ", ".join(
        f"{m.name} {metric_text(m, v)}" for m, v in zip(record.plan.metrics, best.values, strict=True)
    )  # fmt: skip
    return {
        "sweep": record.name, "folder": str(record.folder), **record.plan.identity, "planned": record.plan.trials,
        "best": None if best is None else {"number": best.number, "run": best.run, "values": best.values, "shown": shown},
        "importance": _importance(record), "trials": [asdict(one) for one in result.trials],
    }  # fmt: skip


def _importance(record: SweepRecord) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads((record.folder / "importance.json").read_text("utf-8"))["importance"]
    except (OSError, ValueError, KeyError):
        return {}
    return found
