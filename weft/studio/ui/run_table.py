"""The table of runs: search, filters, groups, sort, columns, pages, selection, and what can be done with the selected ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from nicegui import ui

from ..library.runs import FINISHED, RUNNING, STOPPED, RunRow
from .context import Studio
from .fragment import Fragment
from .rendering import render
from .run_columns import Column, all_columns, chosen_columns
from .run_query import GROUPINGS, RunQuery, fitting, grouped, ordered, page_of

STATES = {"": "Any status", RUNNING: "Running", FINISHED: "Finished", STOPPED: "Stopped"}
COOKIE = "run_columns"  # the columns that this browser shows
TEXTS = ("name", "status", "data", "model", "group", "notes")  # columns that are sorted from A to Z at first


PERIOD = 5.0  # seconds between two updates for runs that go on; the cards of jobs are updated each second
MOST_RENDERED = 16
_RENDERED: dict[tuple[Any, ...], str] = {}


@lru_cache(maxsize=2)
def _columns(studio: Studio, version: int) -> dict[str, Column]:
    """The columns of all runs, found once for all pages after each change of the runs."""
    return all_columns(studio.index.rows())


class RunTable:
    """The table with its controls, as an element of the page."""

    def __init__(self, studio: Studio) -> None:
        self.studio, self.query = studio, RunQuery()
        self.selected: set[str] = set()
        self._version, self._shown = studio.feed.snapshot.runs_version, time.monotonic()
        request = ui.context.client.request
        self.keys = _keys(unquote(request.cookies.get(COOKIE, "")) if request is not None else "")
        ui.add_head_html(f'<script src="{studio.config.prefix}/assets/runs_table.js" defer></script>')
        rows, known = studio.index.rows(), _columns(studio, self._version)
        tags = sorted({tag for row in rows for tag in row.annotations.tags})
        shown = {column.key for column in chosen_columns(known, self.keys)}
        in_order = [*chosen_columns(known, self.keys), *(c for key, c in known.items() if key not in shown)]
        groupings = {key: title for key, (title, _) in GROUPINGS.items()}
        Fragment(
            render("run_filter.html", states=STATES, tags=tags, groupings=groupings, columns=in_order, shown=shown),
            on={"filter": self.filter, "columns": self.choose},
        )
        on = {
            "sort": self.sort_by, "select": self.select, "select-all": self.select_all, "page": self.turn, "group": self.toggle,
        }  # fmt: skip
        self.table = Fragment(self._html(), on=on)
        self.bar = Fragment(self._bar_html(), on={"clear": lambda _: self.select_none()})
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    # --- what the user does -----------------------------------------------------------------------------------------------------

    def filter(self, fields: Mapping[str, str]) -> None:
        """Show the runs that hold all these words and have this status and tag, in these groups."""
        self.query = replace(
            self.query, words=fields["words"].strip(), state=fields["state"], tag=fields.get("tag", ""),
            group_by=fields.get("group_by", ""), page=0, closed=frozenset(),
        )  # fmt: skip
        self._show()

    def choose(self, keys: str) -> None:
        """Show these columns."""
        self.keys = _keys(keys)
        self._show()

    def sort_by(self, key: str) -> None:
        """Sort by a column; a second time, the other way round."""
        again = key == self.query.sort
        self.query = replace(
            self.query, sort=key, page=0, descending=not self.query.descending if again else key not in TEXTS
        )
        self._show()

    def turn(self, page: str) -> None:
        """Show another page."""
        self.query = replace(self.query, page=int(page))
        self._show()

    def toggle(self, name: str) -> None:
        """Hide or show the runs of a group."""
        self.query = replace(self.query, closed=self.query.closed ^ {name})
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
        """The runs that fit search and filters, in order."""
        found = fitting(self.studio.index.rows(), self.query)
        column = _columns(self.studio, self._version).get(self.query.sort)
        return ordered(found, column, self.query.descending)

    def _html(self) -> str:
        """The table. Pages that show the same share it: most show all runs in the usual order."""
        key = (self.studio.index.root, self._version, self.query, tuple(self.keys), frozenset(self.selected))
        if key not in _RENDERED:
            while len(_RENDERED) >= MOST_RENDERED:
                del _RENDERED[next(iter(_RENDERED))]
            _RENDERED[key] = self._rendered()
        return _RENDERED[key]

    def _rendered(self) -> str:
        rows = self.rows()
        known = _columns(self.studio, self._version)
        columns = chosen_columns(known, self.keys)
        metric = _metric(self.query.sort, columns)
        groups = grouped(rows, self.query, metric)
        shown, page, first, total = page_of(groups, self.query)
        sorted_by = known.get(self.query.sort)
        return render(
            "runs_table.html", groups=shown, page=page, first=first, total=total, all=len(self.studio.index.rows()), columns=columns,
            sort=self.query.sort, descending=self.query.descending, selected=self.selected, base=self.studio.config.prefix,
            is_grouped=self.query.group_by in GROUPINGS, closed=self.query.closed, metric=metric, sizes={g.name: len(g.rows) for g in groups},
            range=_range(rows, sorted_by), sorted_by=sorted_by,
        )  # fmt: skip

    def _bar_html(self) -> str:
        names = {row.id: row.name for row in self.studio.index.rows()}
        selected = sorted(self.selected & names.keys())
        return render(
            "bulk_bar.html", selected=selected, names=[names[run] for run in selected], base=self.studio.config.prefix
        )

    def _show(self) -> None:
        self.selected = {run for run in self.selected if self.studio.index.get(run) is not None}  # not those deleted
        self.table.show(self._html())
        self.bar.show(self._bar_html())

    def _follow(self, snapshot: Any) -> None:
        due = snapshot.asked or time.monotonic() - self._shown >= PERIOD
        if snapshot.runs_version != self._version and due:
            self._version, self._shown = snapshot.runs_version, time.monotonic()
            self._show()


def _keys(text: str) -> list[str]:
    return [key for key in text.split("|") if key]


def _metric(sort: str, columns: list[Column]) -> str | None:
    """The metric whose best value groups show: the one that is sorted by, else the first."""
    metrics = [column.key for column in columns if column.is_metric]
    return sort if sort in metrics else metrics[0] if metrics else None


def _range(rows: list[RunRow], column: Column | None) -> tuple[float, float]:
    """The least and the largest value of a metric."""
    if column is None or not column.is_metric:
        return 0.0, 0.0
    values = [value for row in rows if isinstance(value := column.value(row), float) and value == value]
    return min(values, default=0.0), max(values, default=0.0)
