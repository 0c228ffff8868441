"""Several runs side by side: the settings in which they differ, their numbers, and one page with the curves of all of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..io.files import replace_file
from .charts import curves
from .figures import PARTS, across, is_share
from .judge import JUDGES, best_line
from .page import document
from .run import Run
from .run import settings as settings
from .scale import duration, short
from .svg import escape
from .wording import value_words

CHARTS = ("train_loss", "validation_loss", "validation_accuracy")


@dataclass(frozen=True)
class Best:
    """The best value of what a run is judged by, and the epoch that reached it."""

    name: str
    value: float
    epoch: int

    def __str__(self) -> str:
        return f"best {self.name.replace('_', ' ')} {value_text(self.name, self.value)} at epoch {self.epoch}"


@dataclass(frozen=True)
class Line:
    """One number of every run; the places of the best, where more or less of it is better."""

    name: str
    values: tuple[float | None, ...]
    marked: frozenset[int] = frozenset()

    def texts(self) -> list[str]:
        """As people read them, the best with a star."""
        found = [value_text(self.name, value) for value in self.values]
        return [f"{text} *" if i in self.marked else text for i, text in enumerate(found)]


def best(run: Run, names: Sequence[str] = JUDGES) -> Best | None:
    """By the first of these names that was measured; from the summary where the table of epochs is lost."""
    for name in names:
        i = best_line(run.metrics, name)
        value = None if i is None else run.metrics[name][i]
        if i is not None and value is not None:
            epoch = run.metrics["epoch"][i] if "epoch" in run.metrics else None
            return Best(name, value, int(epoch) if epoch is not None and math.isfinite(epoch) else i + 1)
    told = run.summary.get("best")
    row = told if isinstance(told, dict) else {}
    found = next((name for name in names if _is_number(row.get(name))), None)
    return (
        None
        if found is None
        else Best(found, float(row[found]), int(row["epoch"]) if _is_number(row.get("epoch")) else 0)
    )


def last(run: Run, name: str) -> float | None:
    """The last value of a column that was written."""
    known = [v for v in run.metrics.get(name, []) if v is not None]
    return known[-1] if known else None


def seconds(run: Run) -> float | None:
    """How long it trained, if that is known."""
    told = run.summary.get("seconds")
    found = told if _is_number(told) else last(run, "seconds")
    return float(found) if found is not None and math.isfinite(found) else None


def differing(runs: Mapping[str, Run]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs; None where a run has none of that name."""
    all_of = [settings(run) for run in runs.values()]
    names = dict.fromkeys(name for found in all_of for name in found)
    rows = {name: [found.get(name) for found in all_of] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def lines(runs: Mapping[str, Run]) -> list[Line]:
    """The best and the last value of everything that was measured, the epochs and the time."""
    columns = dict.fromkeys(c for run in runs.values() for c in run.metrics if c.partition("_")[0] in PARTS)
    found = []
    for column in columns:
        tops = [best(run, (column,)) for run in runs.values()]
        found.append(_marked(f"best {column.replace('_', ' ')}", [None if b is None else b.value for b in tops]))
        found.append(_marked(f"last {column.replace('_', ' ')}", [last(run, column) for run in runs.values()]))
    found.append(Line("epochs", tuple(float(epochs(run)) for run in runs.values())))
    return [*found, Line("time", tuple(seconds(run) for run in runs.values()))]


def epochs(run: Run) -> int:
    """How many are done."""
    return max(map(len, run.metrics.values()), default=0)


def winner(runs: Mapping[str, Run]) -> tuple[str, Best] | None:
    """The best of the runs, by the first thing that was measured in all of them that have results."""
    some = {label: run for label, run in runs.items() if best(run) is not None}
    for name in JUDGES:
        tops = {label: best(run, (name,)) for label, run in some.items()}
        known = {label: top for label, top in tops.items() if top is not None}
        if known and len(known) == len(some):
            sign = -1 if _less_is_better(name) else 1
            label = max(known, key=lambda one: sign * known[one].value)
            return label, known[label]
    return None


def value_text(name: str, value: float | None) -> str:
    """A number as people read it."""
    if value is None:
        return "-"
    if name == "time":
        return duration(value)
    return f"{100 * value:.2f} %" if is_share(name, [value]) else short(value, 4)


def comparison(runs: Mapping[str, Run], path: str | os.PathLike[str]) -> Path:
    """Write one page with the curves and the numbers of all runs; it opens offline and holds no script."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError("compare", f"{target} cannot be written: {error.strerror or error}.") from error
    replace_file(target, [_page(runs).encode("utf-8", "replace")], "compare")
    return target


def _page(runs: Mapping[str, Run]) -> str:
    top = winner(runs)
    lead = "" if top is None else f"{top[0]}: {top[1]}"
    charts = "".join(f'<div class="card">{chart}</div>' for chart in _charts(runs))
    differ = {name: [value_words(value) for value in values] for name, values in differing(runs).items()}
    numbers = {line.name: line.texts() for line in lines(runs)}
    notes = "".join(
        f'<p class="note">{escape(f"{name}: {note}")}.</p>' for name, run in runs.items() for note in run.notes
    )
    body = (
        f'<header><h1>{len(runs)} runs</h1><p class="lead">{escape(lead)}</p></header>{notes}\n'
        f'<section><h2>Curves</h2><div class="cards">{charts}</div></section>\n'
        f"<section><h2>Settings that differ</h2>{_table(runs, differ)}</section>\n"
        f"<section><h2>Numbers</h2>{_table(runs, numbers)}</section>"
    )
    return document(f"{len(runs)} runs", body)


def _charts(runs: Mapping[str, Run]) -> Iterable[str]:
    """A chart for each thing that any run measured."""
    for name in CHARTS:
        columns = {label: run.metrics.get(name, []) for label, run in runs.items()}
        if not any(columns.values()):
            continue
        share = is_share(name, [v for values in columns.values() for v in values])
        series = {label: _points(runs[label], name, 100 if share else 1) for label in columns}
        places = {across(run) for run in runs.values() if run.metrics}
        title = name.replace("_", " ").capitalize()
        yield curves(series, title, x=places.pop() if len(places) == 1 else "line", unit="%" if share else "")


def _points(run: Run, name: str, factor: float) -> list[tuple[float, float]]:
    values = run.metrics.get(name, [])
    places = run.metrics.get(across(run)) or [float(i) for i in range(1, len(values) + 1)]
    return [(x, factor * v) for x, v in zip(places, values, strict=False) if x is not None and v is not None]


def _table(runs: Mapping[str, Run], rows: Mapping[str, Sequence[str]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(text)}</th>" for text in ("", *runs))
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for name, texts in rows.items()
    )
    return f'<table class="narrow"><tr>{head}</tr>{body}</table>'


def _marked(name: str, values: Sequence[float | None]) -> Line:
    known = [v for v in values if v is not None and math.isfinite(v)]
    if len(known) < 2 or min(known) == max(known):
        return Line(name, tuple(values))
    top = min(known) if _less_is_better(name) else max(known)
    return Line(name, tuple(values), frozenset(i for i, v in enumerate(values) if v == top))


def _less_is_better(name: str) -> bool:
    return "loss" in name or "error" in name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
