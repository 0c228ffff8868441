"""Which runs a table shows, in which order and groups. Nothing here knows of pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...records import dataclass
from ..library.runs import RunRow
from .run_columns import Column, best_of

PAGE = 100  # rows of a page
GROUPINGS: dict[str, tuple[str, Callable[[RunRow], list[str]]]] = {
    "group": ("Group by group", lambda row: [row.annotations.group]),
    "data": ("Group by dataset", lambda row: [row.data]),
    "model": ("Group by network", lambda row: [row.model]),
    "status": ("Group by status", lambda row: [row.status.capitalize()]),
    "tag": ("Group by tag", lambda row: list(row.annotations.tags) or [""]),
}


@dataclass(frozen=True)
class RunQuery:
    """Search, filters, order and groups of a table."""

    words: str = ""
    state: str = ""
    tag: str = ""
    group_by: str = ""
    sort: str = "ended"
    descending: bool = True
    page: int = 0
    closed: frozenset[str] = frozenset()  # groups whose runs are hidden


@dataclass(frozen=True)
class RunGroup:
    """Runs that belong together: their number, and the best value of the metric that is sorted by."""

    name: str
    rows: tuple[RunRow, ...]
    best: float | None = None


def fitting(rows: Sequence[RunRow], query: RunQuery) -> list[RunRow]:
    """The runs that hold all words and have the status and the tag."""
    words = query.words.lower().split()
    return [
        row
        for row in rows
        if (not query.state or row.status == query.state)
        and (not query.tag or query.tag in row.annotations.tags)
        and (not words or all(word in _text(row) for word in words))
    ]


def _text(row: RunRow) -> str:
    """What the search looks at."""
    notes = row.annotations
    settings = " ".join(f"{name}={value}" for name, value in row.settings.items() if value is not None)
    return f"{row.id} {row.model} {row.data} {settings} {' '.join(notes.tags)} {notes.group} {notes.notes}".lower()


def ordered(rows: Sequence[RunRow], column: Column | None, descending: bool) -> list[RunRow]:
    """The runs in the order of a column; missing values come last, either way."""
    if column is None:
        return list(rows)
    ranks = {row.id: _rank(column.value(row)) for row in rows}
    known = [row for row in rows if ranks[row.id] is not None]
    rest = [row for row in rows if ranks[row.id] is None]
    return sorted(known, key=lambda row: ranks[row.id], reverse=descending) + rest


def _rank(value: Any) -> Any:
    """What rows are sorted by: numbers before texts; None for a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return (1, 0.0, value.lower()) if isinstance(value, str) else (0, float(value), "")


def grouped(rows: Sequence[RunRow], query: RunQuery, metric: str | None) -> list[RunGroup]:
    """The runs in groups, in the order of the first run of each; those without a group come last. No groups: one of all."""
    if query.group_by not in GROUPINGS:
        return [RunGroup("", tuple(rows))]
    found: dict[str, list[RunRow]] = {}
    for row in rows:
        for name in GROUPINGS[query.group_by][1](row):
            found.setdefault(name, []).append(row)
    ordered_names = sorted(found, key=lambda name: name == "")
    return [RunGroup(name, tuple(found[name]), _best(found[name], metric)) for name in ordered_names]


def _best(rows: Sequence[RunRow], metric: str | None) -> float | None:
    values = [value for row in rows if metric and (value := best_of(row, metric)) is not None and math.isfinite(value)]
    if not values:
        return None
    return min(values) if (metric or "").endswith("loss") else max(values)


def page_of(groups: Sequence[RunGroup], query: RunQuery) -> tuple[list[RunGroup], int, int, int]:
    """The part of the groups on the page, the number of the page, how many runs come before it, and how many there are."""
    total = sum(len(group.rows) for group in groups if group.name not in query.closed)
    page = max(0, min(query.page, (total - 1) // PAGE if total else 0))
    first, last, at = page * PAGE, (page + 1) * PAGE, 0
    shown: list[RunGroup] = []
    for group in groups:
        if group.name in query.closed:
            if first <= at < last or (at == last == total):
                shown.append(RunGroup(group.name, group.rows, group.best))
            continue
        part = group.rows[max(0, first - at) : max(0, last - at)]
        at += len(group.rows)
        if part:
            shown.append(RunGroup(group.name, part, group.best))
    return shown, page, first, total
