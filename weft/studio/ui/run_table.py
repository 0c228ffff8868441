"""The table of runs: search, filter, sort, columns, selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from ..library.runs import FINISHED, RUNNING, STOPPED, RunRow
from .context import Studio
from .formats import duration, full_time, metric_name, metric_value, moment
from .fragment import Fragment
from .rendering import render

MOST = 200  # rows that a page shows; the search narrows them down
STATES = {"": "Any status", RUNNING: "Running", FINISHED: "Finished", STOPPED: "Stopped"}


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
    share: Callable[[Any, Sequence[RunRow]], float] | None = None  # of an in-cell bar, while the table is sorted by it


def _metric_column(name: str) -> Column:
    def share(value: Any, rows: Sequence[RunRow]) -> float:
        known = [v for row in rows if (v := _best_of(row, name)) is not None]
        low = min(known, default=0.0) - 0.05 * (max(known, default=0.0) - min(known, default=0.0))
        return 0.0 if value is None or max(known) == low else (value - low) / (max(known) - low)

    title = metric_name(name).capitalize()
    return Column(name, title, lambda row: _best_of(row, name), lambda v: metric_value(name, v), True, share=share)


def _best_of(row: RunRow, name: str) -> float | None:
    """The value of a metric at the best epoch."""
    return row.value_at(name, row.best_index)


def columns_of(rows: Sequence[RunRow]) -> list[Column]:
    """The columns that these runs need: validation metrics if they have them, else those of training."""
    names = ["validation_accuracy", "validation_loss"]
    if not any(name in row.metrics for row in rows for name in names):
        names = ["train_accuracy", "train_loss"]
    found = [name for name in names if any(name in row.metrics for row in rows)]
    return [
        Column("name", "Name", lambda row: row.name),
        Column("status", "Status", lambda row: row.status),
        Column("data", "Dataset", lambda row: row.data),
        Column("model", "Network", lambda row: row.model),
        *map(_metric_column, found),
        Column("trend", "Trend", lambda row: None, sortable=False),
        Column("seconds", "Duration", lambda row: row.seconds, duration, True),
        Column(
            "ended", "Finished", lambda row: row.ended or row.started, moment, hint=lambda row: full_time(row.ended)
        ),
    ]


class RunTable:
    """The table with its controls, as an element of the page."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.words, self.state = "", ""
        self.sort, self.descending = "ended", True
        self.selected: set[str] = set()
        self._version = -1
        Fragment(render("run_filter.html", states=STATES), on={"filter": self.filter})
        self.table = Fragment(
            self._html(), on={"sort": self.sort_by, "select": self.select, "select-all": self.select_all}
        )
        self.bar = Fragment(self._bar_html(), on={"clear": lambda _: self.select_none()})
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    # --- what the user does -----------------------------------------------------------------------------------------------------

    def filter(self, fields: Mapping[str, str]) -> None:
        """Show the runs that hold all these words and have this status."""
        self.words, self.state = fields["words"].strip().lower(), fields["state"]
        self._show()

    def sort_by(self, key: str) -> None:
        """Sort by a column; a second time, the other way round."""
        self.descending = not self.descending if key == self.sort else key not in ("name", "status", "data", "model")
        self.sort = key
        self._show()

    def select(self, run: str) -> None:
        self.selected ^= {run}
        self._show()

    def select_all(self, _: str) -> None:
        shown = {row.id for row in self.rows()}
        self.selected = set() if shown <= self.selected else shown
        self._show()

    def select_none(self) -> None:
        self.selected = set()
        self._show()

    # --- what it shows ----------------------------------------------------------------------------------------------------------

    def rows(self) -> list[RunRow]:
        """The runs that fit search and filter, in order."""
        found = [row for row in self.studio.index.rows() if self._fits(row)]
        column = next((c for c in columns_of(found) if c.key == self.sort), None)
        if column is None:
            return found
        known = [row for row in found if _rank(column.value(row)) is not None]
        rest = [row for row in found if _rank(column.value(row)) is None]  # missing values come last, either way
        return sorted(known, key=lambda row: _rank(column.value(row)), reverse=self.descending) + rest

    def _fits(self, row: RunRow) -> bool:
        if self.state and row.status != self.state:
            return False
        if not self.words:
            return True
        text = f"{row.id} {row.model} {row.data} " + " ".join(
            f"{k}={v}" for k, v in row.settings.items() if v is not None
        )
        return all(word in text.lower() for word in self.words.split())

    def _html(self) -> str:
        rows = self.rows()
        return render(
            "runs_table.html", rows=rows[:MOST], total=len(self.studio.index.rows()), columns=columns_of(rows), sort=self.sort,
            descending=self.descending, selected=self.selected, base=self.studio.config.prefix, hidden=max(0, len(rows) - MOST),
        )  # fmt: skip

    def _bar_html(self) -> str:
        return render("bulk_bar.html", selected=sorted(self.selected), base=self.studio.config.prefix)

    def _show(self) -> None:
        self.table.show(self._html())
        self.bar.show(self._bar_html())

    def _follow(self, snapshot: Any) -> None:
        if snapshot.runs_version != self._version:
            self._version = snapshot.runs_version
            self._show()


def _rank(value: Any) -> Any:
    """What rows are sorted by; None for a missing value."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.lower() if isinstance(value, str) else value
