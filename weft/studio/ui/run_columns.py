"""The columns that a table of runs can have: facts, annotations, every metric at the best epoch, every setting that differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...jobs.schema import as_text
from ...jobs.settings import OF_ONE_RUN
from ...records import dataclass
from ..library.runs import RUNNING, RunRow
from ..library.training_fields import setting_title
from .formats import duration, full_time, metric_name, metric_value, moment

MOST_COLUMNS = 40  # that a table shows
SETTING = "setting "  # before the name of a setting in the key of its column
_SKIPPED = ("epoch", "steps", "seconds")  # columns of metrics.csv that are no metrics


@dataclass(frozen=True)
class Column:
    """A column: the value of a run, and its text."""

    key: str
    title: str
    value: Callable[[RunRow], Any]
    text: Callable[[Any], str] = str
    right: bool = False
    sortable: bool = True
    hint: Callable[[RunRow], str] | None = None
    is_metric: bool = False

    def share(self, value: Any, low: float, high: float) -> float:
        """How long the bar in a cell is, in a table whose values lie between these."""
        low -= 0.05 * (high - low)
        return 0.0 if value is None or high == low else min(1.0, max(0.0, (value - low) / (high - low)))


def best_of(row: RunRow, name: str) -> float | None:
    """The value of a metric at the best epoch."""
    return row.value_at(name, row.best_index)


def _metric(name: str) -> Column:
    title = metric_name(name)
    return Column(
        name, title[:1].upper() + title[1:], lambda row: best_of(row, name), lambda v: metric_value(name, v), True, is_metric=True
    )  # fmt: skip


def _setting(name: str) -> Column:
    def value(row: RunRow) -> Any:
        found = row.settings.get(name)
        return found if isinstance(found, int | float | str) else None if found is None else as_text(found)

    return Column(SETTING + name, setting_title(name), value, lambda v: "–" if v is None else as_text(v), True)


def _finished(row: RunRow) -> float | None:
    """When a run ended; one that runs has not."""
    return None if row.status == RUNNING else row.ended or row.started


_FACTS = (
    Column("name", "Name", lambda row: row.name),
    Column("status", "Status", lambda row: row.status),
    Column("data", "Dataset", lambda row: row.data),
    Column("model", "Network", lambda row: row.model),
)
_LATER = (
    Column("trend", "Trend", lambda row: None, sortable=False),
    Column("seconds", "Duration", lambda row: row.seconds, duration, True),
    Column("ended", "Finished", _finished, moment, hint=lambda row: full_time(_finished(row))),
    Column("started", "Started", lambda row: row.started, moment, hint=lambda row: full_time(row.started)),
    Column("epochs", "Epochs done", lambda row: row.epochs, str, True),
    Column("group", "Group", lambda row: row.annotations.group or None, lambda v: v or "–"),
    Column("notes", "Notes", lambda row: row.annotations.notes or None, lambda v: (v or "–")[:80]),
)


def all_columns(rows: Sequence[RunRow]) -> dict[str, Column]:
    """Every column that these runs can fill, by key, in the order of the chooser."""
    metrics = dict.fromkeys(name for row in rows for name in row.metrics if name not in _SKIPPED)
    seen: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.settings.items():
            if name not in OF_ONE_RUN and name not in ("data", "model"):
                seen.setdefault(name, set()).add(str(value))
    settings = [name for name, values in seen.items() if len(values) > 1]
    ordered = sorted(metrics, key=lambda name: (not name.startswith("validation"), name))
    found = [*_FACTS, *map(_metric, ordered), *_LATER, *map(_setting, sorted(settings))]
    return {column.key: column for column in found}


def usual_columns(known: dict[str, Column]) -> list[str]:
    """The columns of somebody who has chosen none: validation metrics if there are any, else those of training."""
    names = ["validation_accuracy", "validation_loss"]
    if not any(name in known for name in names):
        names = ["train_accuracy", "train_loss"]
    return ["name", "status", "data", "model", *(name for name in names if name in known), "trend", "seconds", "ended"]


def chosen_columns(known: dict[str, Column], keys: Sequence[str]) -> list[Column]:
    """The columns with these keys; the name is always there. Keys of columns that no run fills are left out."""
    wanted = [key for key in keys if key in known] or usual_columns(known)
    if "name" not in wanted:
        wanted.insert(0, "name")
    return [known[key] for key in wanted[:MOST_COLUMNS]]
