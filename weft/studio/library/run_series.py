"""What a run measured over epochs, steps or time, for charts. The file of events is read as it grows: each line once, for all pages."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...jobs.events import FILE
from ...records import dataclass
from ...report.decimation import decimated, means
from .run_ranks import RankReading
from .runs import RunRow

AXES = {"epoch": "Epoch", "step": "Step", "time": "Time"}
POINTS = 1500  # of a series that are sent to a browser
WITHIN = ("loss", "examples_per_second")  # of a progress event
RESOURCES = ("memory_bytes", "free_bytes", "cpu_seconds")
Points = list[tuple[float, float]]
_COLUMNS = {"epoch": "epoch", "step": "steps", "time": "seconds"}  # of metrics.csv


@dataclass
class Samples:
    """Values with the places where they were measured; later ones are removed when a run goes back to a checkpoint."""

    places: dict[str, list[float]] = field(default_factory=lambda: {axis: [] for axis in AXES})
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, place: dict[str, float], values: dict[str, Any], names: Sequence[str]) -> None:
        for axis, at in place.items():
            self.places[axis].append(at)
        for name in names:
            value = values.get(name)
            number = float(value) if isinstance(value, int | float) else float("nan")
            self.values.setdefault(name, []).append(number)

    def go_back(self, step: float) -> None:
        """Forget what was measured at this step or later."""
        steps = self.places["step"]
        keep = len(steps)
        while keep and steps[keep - 1] >= step:
            keep -= 1
        for column in (*self.places.values(), *self.values.values()):
            del column[keep:]

    def last(self, axis: str) -> float:
        return self.places[axis][-1] if self.places[axis] else 0.0

    def series(self, name: str, axis: str) -> tuple[np.ndarray, np.ndarray]:
        values = np.asarray(self.values.get(name, ()), np.float64)
        places = np.asarray(self.places[axis], np.float64)
        known = np.isfinite(values) if len(values) else np.zeros(0, bool)
        return places[: len(values)][known], values[known]


class RunEvents:
    """The events of a run: values within epochs, resources, and the log."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._reading = threading.Lock()
        self._start_again()

    def _start_again(self) -> None:
        self.progress, self.resources = Samples(), Samples()
        self.log: list[tuple[float, str, str]] = []  # time, level, text
        self.ranks: dict[int, RankReading] = {}  # of a training over several processes
        self._place = 0
        self._since: float | None = None  # when the last value was measured, or the run began or continued

    def read(self) -> RunEvents:
        """Read what was written since the last time."""
        with self._reading:
            try:
                with self.path.open("rb") as file:
                    if file.seek(0, 2) < self._place:  # the run was replaced
                        self._start_again()
                    file.seek(self._place)
                    whole, _, _ = file.read().rpartition(b"\n")
            except OSError:
                return self
            for line in whole.decode("utf-8", "replace").split("\n") if whole else ():
                self._take(line)
            self._place += len(whole) + (1 if whole else 0)
        return self

    def is_longer_than(self, size: int) -> bool:
        """Whether the file has more bytes than that."""
        try:
            return self.path.stat().st_size > size
        except OSError:
            return False

    def _take(self, line: str) -> None:
        try:
            event = json.loads(line)
            kind, when = event["type"], float(event["time"])
        except (ValueError, KeyError, TypeError):  # a crash of the machine may leave half a line
            return
        if kind in ("started", "resumed"):
            self._since = when
            self.ranks = {}  # a run may go on with another number of processes
        elif kind == "rank" and isinstance(event.get("rank"), int):
            self.ranks.setdefault(event["rank"], RankReading(event["rank"])).take(event, when)
        elif kind == "progress" and event.get("steps"):
            self._progress(event, when)
        elif kind == "resources":
            places = {axis: self.progress.last(axis) for axis in AXES}
            self.resources.add(places, {**event, "time": when}, (*RESOURCES, "time"))
        elif kind == "log":
            self.log.append((when, str(event.get("level", "info")), str(event.get("text", ""))))

    def _progress(self, event: dict[str, Any], when: float) -> None:
        step = (event["epoch"] - 1) * event["steps"] + event["step"]
        if step <= self.progress.last("step"):
            self.progress.go_back(step)
            self.resources.go_back(step)
        seconds = self.progress.last("time") + (0.0 if self._since is None else max(0.0, when - self._since))
        self._since = when
        self.progress.add({"epoch": step / event["steps"], "step": float(step), "time": seconds}, event, WITHIN)

    def cpu(self, axis: str) -> tuple[np.ndarray, np.ndarray]:
        """Processor cores in use, between each two measurements."""
        _, seconds = self.resources.series("cpu_seconds", axis)
        x, when = self.resources.series("time", axis)
        if len(seconds) < 2 or len(seconds) != len(when):
            return np.zeros(0), np.zeros(0)
        spent, passed = np.diff(seconds), np.diff(when)
        known = (spent >= 0) & (passed > 0)
        return x[1:][known], spent[known] / passed[known]


@lru_cache(maxsize=64)
def events_of(folder: Path) -> RunEvents:
    """The reader of a run's events, shared by all pages."""
    return RunEvents(folder)


def epoch_points(row: RunRow, name: str, axis: str = "epoch") -> Points:
    """A metric of the epochs."""
    places = row.metrics.get(_COLUMNS[axis]) or row.metrics.get("epoch", [])
    values = row.metrics.get(name, [])
    return [(x, v) for x, v in zip(places, values, strict=False) if x is not None and v is not None]


def window(
    x: np.ndarray, y: np.ndarray, span: tuple[float, float] | None = None, points: int = POINTS
) -> list[tuple[float, float]]:
    """At most so many points of a series, of the part that is shown and one point on each side of it."""
    return _points(*decimated(*_part(x, y, span), points))


def mean_window(
    x: np.ndarray, y: np.ndarray, span: tuple[float, float] | None = None, points: int = POINTS
) -> list[tuple[float, float]]:
    """Means of a series for its smoothed line; none where `window` keeps every point."""
    x, y = _part(x, y, span)
    return [] if len(x) <= points else _points(*means(x, y, points // 3))


def _part(x: np.ndarray, y: np.ndarray, span: tuple[float, float] | None) -> tuple[np.ndarray, np.ndarray]:
    if span is None:
        return x, y
    start = max(0, int(np.searchsorted(x, span[0])) - 1)
    end = int(np.searchsorted(x, span[1], "right")) + 1
    return x[start:end], y[start:end]


def _points(x: np.ndarray, y: np.ndarray) -> Points:
    return list(zip(x.round(5).tolist(), y.tolist(), strict=True))


def all_series(row: RunRow, axis: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Everything that a run measured, in full: metrics of epochs by their names, values within epochs as step_NAME."""
    events = events_of(row.folder).read()
    found = {}
    for name in row.metrics:
        if name not in _COLUMNS.values():
            points = np.asarray(epoch_points(row, name, axis), np.float64).reshape(-1, 2)
            found[name] = points[:, 0], points[:, 1]
    found |= {f"step_{name}": events.progress.series(name, axis) for name in WITHIN}
    found |= {name: events.resources.series(name, axis) for name in ("memory_bytes", "free_bytes")}
    found["cpu_cores"] = events.cpu(axis)
    return {name: (x, y) for name, (x, y) in found.items() if len(x)}
