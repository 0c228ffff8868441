"""What the page of a run shows beyond the index: values within epochs, resources, the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...jobs.events import Event, replay
from .runs import RunRow

Points = list[tuple[float, float]]


@dataclass
class RunDetails:
    """The values of a run over epochs; `within` are those measured between two epochs."""

    by_epoch: dict[str, Points] = field(default_factory=dict)
    within: dict[str, Points] = field(default_factory=dict)
    log: list[tuple[float, str, str]] = field(default_factory=list)  # time, level, text


def read_details(row: RunRow) -> RunDetails:
    """Read the events of a run, and the metrics of its epochs from the index."""
    found = RunDetails(_by_epoch(row))
    epoch = 0.0
    for event in _attempt(replay(row.folder)):
        if event.type == "progress" and event.facts.get("steps"):
            facts = event.facts
            epoch = facts["epoch"] - 1 + facts["step"] / facts["steps"]
            for name in ("loss", "examples_per_second"):
                _add(found.within, name, epoch, facts.get(name))
        elif event.type == "resources":
            for name in ("memory_bytes", "device_bytes"):
                _add(found.within, name, epoch, event.facts.get(name))
        elif event.type == "log":
            found.log.append((event.time, str(event.facts.get("level", "info")), str(event.facts.get("text", ""))))
    return found


def _attempt(events: Iterable[Event]) -> list[Event]:
    """The events, without values of epochs that were trained once more after a resume: those after the place that it went back to."""
    kept: list[Event] = []
    for event in events:
        if event.type == "progress" and event.facts.get("steps"):
            place = (event.facts.get("epoch", 0), event.facts.get("step", 0))
            while kept and (last := _place(kept[-1])) is not None and last >= place:
                kept.pop()
        kept.append(event)
    return kept


def _place(event: Event) -> tuple[int, int] | None:
    if event.type != "progress" or not event.facts.get("steps"):
        return None
    return event.facts.get("epoch", 0), event.facts.get("step", 0)


def _by_epoch(row: RunRow) -> dict[str, Points]:
    epochs = row.metrics.get("epoch", [])
    return {
        name: [(e, v) for e, v in zip(epochs, values, strict=False) if e is not None and v is not None]
        for name, values in row.metrics.items()
        if name not in ("epoch", "steps", "seconds")
    }


def _add(series: dict[str, Points], name: str, x: float, value: Any) -> None:
    if isinstance(value, int | float):
        series.setdefault(name, []).append((x, float(value)))


def files_of(row: RunRow) -> list[tuple[Path, int]]:
    """The files of a run below its folder, with their sizes."""
    found = [path for path in sorted(row.folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return [(path.relative_to(row.folder), path.stat().st_size) for path in found]
