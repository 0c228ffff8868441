"""Rows of throughput, energy and cost, and their table as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..records import dataclass
from ..report.axes import short
from .profile_text import amount, duration, table

UNKNOWN = "-"


@dataclass(frozen=True)
class ThroughputRow:
    """One batch size on one device."""

    device: str
    what: str  # infer or train
    batch: int
    calls: int  # individually timed
    p50: float  # seconds of a call
    p95: float
    p99: float
    per_second: float  # examples
    joules: float | None = None  # per example; None: unknown
    energy: str = ""  # "measured" or "modelled"
    power_limit: float | None = None  # watts, from the description, like those below
    price: float | None = None
    dollars_per_hour: float | None = None
    timing: str = "measured"  # or "modelled": the times of a modelled machine

    @property
    def per_joule(self) -> float | None:
        """Examples per joule: images per second per watt of measured or modelled power."""
        return 1 / self.joules if self.joules else None

    @property
    def per_second_per_watt(self) -> float | None:
        """Examples per second per watt of the power limit."""
        return self.per_second / self.power_limit if self.power_limit else None

    @property
    def per_second_per_dollar(self) -> float | None:
        """Examples per second per dollar of the purchase price."""
        return self.per_second / self.price if self.price else None

    @property
    def per_dollar(self) -> float | None:
        """Examples per dollar of rent."""
        return 3600 * self.per_second / self.dollars_per_hour if self.dollars_per_hour else None


@dataclass(frozen=True)
class ThroughputTable:
    """The rows of one device or of several. `print` it."""

    rows: tuple[ThroughputRow, ...]
    notes: tuple[str, ...] = ()
    examples: int | None = None  # of an epoch

    def __add__(self, other: ThroughputTable) -> ThroughputTable:
        notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        return ThroughputTable((*self.rows, *other.rows), notes, self.examples or other.examples)

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON values."""
        derived = ("per_joule", "per_second_per_watt", "per_second_per_dollar", "per_dollar")
        rows = [asdict(row) | {name: getattr(row, name) for name in derived} for row in self.rows]
        return {"rows": rows, "notes": list(self.notes), "examples": self.examples}

    def __str__(self) -> str:
        return throughput_text(self.rows, self.notes, self.examples)


def throughput_text(rows: Sequence[ThroughputRow], notes: Sequence[str], examples: int | None = None) -> str:
    """The table, with notes below it. Empty columns are left out."""
    if not rows:
        return "\n".join(("no batch size could be measured", *notes))
    unit = "samples" if all(row.what == "train" for row in rows) else "inferences"
    columns = [[title, *map(cell, rows)] for title, cell in _columns(unit, examples)]
    known = [column for column in columns if set(column[1:]) != {UNKNOWN}]
    return "\n".join([table(list(zip(*known, strict=True)), left=1), *notes])


def _columns(unit: str, examples: int | None) -> list[tuple[str, Callable[[ThroughputRow], str]]]:
    found: list[tuple[str, Callable[[ThroughputRow], str]]] = [
        ("device", lambda row: row.device),
        ("batch", lambda row: str(row.batch)),
        (f"{unit}/s", lambda row: _number(row.per_second)),
        ("p50", lambda row: duration(row.p50)),
        ("p95", lambda row: duration(row.p95)),
        ("p99", lambda row: duration(row.p99)),
        ("calls", lambda row: str(row.calls) if row.calls else row.timing),
        (f"{unit}/J", lambda row: _marked(row, row.per_joule)),
        (f"{unit}/s/W of the limit", lambda row: _number(row.per_second_per_watt)),
        (f"{unit}/s/$", lambda row: _number(row.per_second_per_dollar)),
        (f"{unit}/$ of rent", lambda row: _number(row.per_dollar)),
    ]
    if examples:
        found += [
            ("time/epoch", lambda row: duration(examples / row.per_second)),
            ("J/epoch", lambda row: _marked(row, examples * row.joules if row.joules else None)),
            ("$/epoch", lambda row: _number(_epoch_dollars(row, examples))),
        ]
    return found


def _epoch_dollars(row: ThroughputRow, examples: int) -> float | None:
    """The cost of renting the device for an epoch."""
    return None if row.dollars_per_hour is None else examples / row.per_second / 3600 * row.dollars_per_hour


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else short(value)


def _marked(row: ThroughputRow, value: float | None) -> str:
    """A number, marked as measured or modelled."""
    return UNKNOWN if value is None else f"{amount(value).strip()} {row.energy}"
