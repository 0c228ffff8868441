"""Compares runs: differing settings, metrics side by side, and one page with the curves of all runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..io.files import replace_file
from ..records import dataclass
from .axes import duration, short
from .best_epoch import SELECTION_METRICS, best_row
from .charts import curves
from .page import document
from .run_charts import SPLITS, is_fraction, x_column
from .run_record import RunRecord
from .run_record import settings as settings
from .svg import escape
from .text_format import format_value

CHARTS = ("train_loss", "validation_loss", "validation_accuracy")


@dataclass(frozen=True)
class Best:
    """The best value of the selection metric of a run, and its epoch."""

    name: str
    value: float
    epoch: int

    def __str__(self) -> str:
        return f"best {self.name.replace('_', ' ')} {value_text(self.name, self.value)} at epoch {self.epoch}"


@dataclass(frozen=True)
class ComparisonRow:
    """One metric of all runs; `marked` are the indices of the best runs."""

    name: str
    values: tuple[float | None, ...]
    marked: frozenset[int] = frozenset()

    def texts(self) -> list[str]:
        """The formatted values, the best with a star."""
        found = [value_text(self.name, value) for value in self.values]
        return [f"{text} *" if i in self.marked else text for i, text in enumerate(found)]


def best(run: RunRecord, names: Sequence[str] = SELECTION_METRICS) -> Best | None:
    """The best epoch by the first of these metrics that was measured; from summary.json if metrics.csv is lost."""
    for name in names:
        i = best_row(run.metrics, name)
        value = None if i is None else run.metrics[name][i]
        if i is not None and value is not None:
            epoch = run.metrics["epoch"][i] if "epoch" in run.metrics else None
            return Best(name, value, int(epoch) if epoch is not None and math.isfinite(epoch) else i + 1)
    recorded = run.summary.get("best")
    row = recorded if isinstance(recorded, dict) else {}
    found = next((name for name in names if _is_number(row.get(name))), None)
    return (
        None
        if found is None
        else Best(found, float(row[found]), int(row["epoch"]) if _is_number(row.get("epoch")) else 0)
    )


def last_value(run: RunRecord, name: str) -> float | None:
    """The last value of a column."""
    known = [v for v in run.metrics.get(name, []) if v is not None]
    return known[-1] if known else None


def value_at(run: RunRecord, name: str, epoch: int) -> float | None:
    """The value of a column at an epoch."""
    rows = [i for i, e in enumerate(run.metrics.get("epoch", [])) if e == epoch]
    column = run.metrics.get(name, [])
    return column[rows[-1]] if rows and rows[-1] < len(column) else None


def training_seconds(run: RunRecord) -> float | None:
    """The training time, if known."""
    recorded = run.summary.get("seconds")
    found = recorded if _is_number(recorded) else last_value(run, "seconds")
    return float(found) if found is not None and math.isfinite(found) else None


def differing(runs: Mapping[str, RunRecord]) -> dict[str, list[Any]]:
    """The settings that differ between runs; None for a run without the setting."""
    all_of = [settings(run) for run in runs.values()]
    names = dict.fromkeys(name for found in all_of for name in found)
    rows = {name: [found.get(name) for found in all_of] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def comparison_rows(runs: Mapping[str, RunRecord], epoch: int | None = None) -> list[ComparisonRow]:
    """The best and last value of each metric, that at an epoch if one is given, the epochs and the time."""
    columns = dict.fromkeys(c for run in runs.values() for c in run.metrics if c.partition("_")[0] in SPLITS)
    found = []
    for column in columns:
        bests = [best(run, (column,)) for run in runs.values()]
        found.append(_mark_best(f"best {column.replace('_', ' ')}", [None if b is None else b.value for b in bests]))
        found.append(_mark_best(f"last {column.replace('_', ' ')}", [last_value(run, column) for run in runs.values()]))
        if epoch is not None:
            values = [value_at(run, column, epoch) for run in runs.values()]
            found.append(_mark_best(f"{column.replace('_', ' ')} at epoch {epoch}", values))
    found.append(ComparisonRow("epochs", tuple(float(epochs(run)) for run in runs.values())))
    return [*found, ComparisonRow("time", tuple(training_seconds(run) for run in runs.values()))]


def epochs(run: RunRecord) -> int:
    """The number of completed epochs."""
    return max(map(len, run.metrics.values()), default=0)


def best_run(runs: Mapping[str, RunRecord]) -> tuple[str, Best] | None:
    """The best run, by the first metric that all runs with results share."""
    some = {label: run for label, run in runs.items() if best(run) is not None}
    for name in SELECTION_METRICS:
        bests = {label: best(run, (name,)) for label, run in some.items()}
        known = {label: top for label, top in bests.items() if top is not None}
        if known and len(known) == len(some):
            sign = -1 if _less_is_better(name) else 1
            label = max(known, key=lambda one: sign * known[one].value)
            return label, known[label]
    return None


def value_text(name: str, value: float | None) -> str:
    """A formatted value of a metric."""
    if value is None:
        return "-"
    if name == "time":
        return duration(value)
    return f"{100 * value:.2f} %" if is_fraction(name, [value]) else short(value, 4)


def comparison(runs: Mapping[str, RunRecord], path: str | os.PathLike[str], sections: Sequence[str] = ()) -> Path:
    """Write one self-contained HTML page with the curves and metrics of all runs, and further sections of HTML."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError("compare", f"{target} cannot be written: {error.strerror or error}.") from error
    replace_file(target, [_page(runs, sections).encode("utf-8", "replace")], "compare")
    return target


def _page(runs: Mapping[str, RunRecord], sections: Sequence[str]) -> str:
    top = best_run(runs)
    lead = "" if top is None else f"{top[0]}: {top[1]}"
    charts = "".join(f'<div class="card">{chart}</div>' for chart in _charts(runs))
    differ = {name: [format_value(value) for value in values] for name, values in differing(runs).items()}
    numbers = {line.name: line.texts() for line in comparison_rows(runs)}
    notes = "".join(
        f'<p class="note">{escape(f"{name}: {note}")}.</p>' for name, run in runs.items() for note in run.notes
    )
    body = (
        f'<header><h1>{len(runs)} runs</h1><p class="lead">{escape(lead)}</p></header>{notes}\n'
        f'<section><h2>Curves</h2><div class="cards">{charts}</div></section>\n'
        f"<section><h2>Settings that differ</h2>{text_table(list(runs), differ)}</section>\n"
        f"<section><h2>Metrics</h2>{text_table(list(runs), numbers)}</section>{''.join(sections)}"
    )
    return document(f"{len(runs)} runs", body)


def _charts(runs: Mapping[str, RunRecord]) -> Iterable[str]:
    """A chart for each metric that any run measured."""
    for name in CHARTS:
        columns = {label: run.metrics.get(name, []) for label, run in runs.items()}
        if not any(columns.values()):
            continue
        share = is_fraction(name, [v for values in columns.values() for v in values])
        series = {label: _points(runs[label], name, 100 if share else 1) for label in columns}
        places = {x_column(run) for run in runs.values() if run.metrics}
        title = name.replace("_", " ").capitalize()
        yield curves(series, title, x=places.pop() if len(places) == 1 else "line", unit="%" if share else "")


def _points(run: RunRecord, name: str, factor: float) -> list[tuple[float, float]]:
    values = run.metrics.get(name, [])
    places = run.metrics.get(x_column(run)) or [float(i) for i in range(1, len(values) + 1)]
    return [(x, factor * v) for x, v in zip(places, values, strict=False) if x is not None and v is not None]


def text_table(titles: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of HTML: a column for each title, a row for each name."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(text)}</th>" for text in ("", *titles))
    body = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for name, texts in rows.items()
    )
    return f'<table class="narrow"><tr>{head}</tr>{body}</table>'


def _mark_best(name: str, values: Sequence[float | None]) -> ComparisonRow:
    known = [v for v in values if v is not None and math.isfinite(v)]
    if len(known) < 2 or min(known) == max(known):
        return ComparisonRow(name, tuple(values))
    top = min(known) if _less_is_better(name) else max(known)
    return ComparisonRow(name, tuple(values), frozenset(i for i, v in enumerate(values) if v == top))


def _less_is_better(name: str) -> bool:
    return "loss" in name or "error" in name


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
