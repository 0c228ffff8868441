"""An index of all runs below a folder: what tables and search show of each. Files are read again only when they have changed."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from ...io.dataset_names import dataset_label
from ...jobs.annotations import FILE as ANNOTATIONS
from ...jobs.annotations import Annotations, parse_annotations
from ...jobs.definitions import network_label
from ...jobs.find import run_folders
from ...locks import writer_of
from ...records import dataclass
from ...report.best_epoch import SELECTION_METRICS, best_row

RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"
_WATCHED = ("args.yaml", "metrics.csv", "summary.json", ANNOTATIONS)
_LARGEST = 64 << 20  # bytes; larger files are not read for the index


@dataclass(frozen=True)
class RunRow:
    """What the index knows of a run."""

    id: str  # its folder below the folder of runs, such as classify/lenet5-digits-1
    folder: Path
    settings: Mapping[str, Any]
    metrics: Mapping[str, list[float | None]]  # by epoch
    summary: Mapping[str, Any]
    status: str
    started: float  # seconds since 1970
    problems: tuple[str, ...] = ()
    best_metric: str | None = field(default=None)
    best_index: int | None = field(default=None)
    annotations: Annotations = field(default_factory=Annotations)

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def real_folder(self) -> Path:
        """The folder without links."""
        return self.folder.resolve()

    @property
    def model(self) -> str:
        return network_label(str(self.settings.get("model") or ""))

    @property
    def data(self) -> str:
        """The name of the dataset; of a folder or file, its last part; of a version, both: flowers v2."""
        return dataset_label(str(self.settings.get("data") or ""))

    @property
    def epochs(self) -> int:
        """Epochs that are done."""
        return len(self.metrics.get("epoch", ()))

    @property
    def planned(self) -> int:
        found = self.settings.get("epochs")
        return found if isinstance(found, int) else self.epochs

    @property
    def best(self) -> float | None:
        """The best value of the metric that chooses the best epoch."""
        return self.value_at(self.best_metric, self.best_index)

    @property
    def best_epoch(self) -> int | None:
        found = self.value_at("epoch", self.best_index)
        return None if found is None else int(found)

    @property
    def seconds(self) -> float | None:
        return self.last("seconds")

    @property
    def ended(self) -> float | None:
        """When the last epoch ended."""
        return None if self.seconds is None else self.started + self.seconds

    @property
    def made_by(self) -> str:
        """What made its network from others: a compression or an ensemble; nothing if it was trained."""
        return next((name for name in ("compression", "ensemble") if isinstance(self.summary.get(name), dict)), "")

    def value_at(self, metric: str | None, index: int | None) -> float | None:
        column = self.metrics.get(metric or "", ())
        return column[index] if index is not None and index < len(column) else None

    def last(self, metric: str) -> float | None:
        """The last value of a metric."""
        return next((value for value in reversed(self.metrics.get(metric, [])) if value is not None), None)

    def points(self, metric: str) -> list[tuple[float, float]]:
        """The values of a metric over epochs."""
        pairs = zip(self.metrics.get("epoch", []), self.metrics.get(metric, []), strict=False)
        return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]

    def best_point(self, metric: str) -> tuple[float, float] | None:
        """The best epoch and the value of a metric there."""
        value = self.value_at(metric, self.best_index)
        return None if value is None or self.best_epoch is None else (float(self.best_epoch), value)

    def trend(self, metric: str | None = None) -> list[float]:
        """The values of a metric by epoch, without those that are missing."""
        return [v for v in self.metrics.get(metric or self.best_metric or "", []) if v is not None and math.isfinite(v)]


class RunIndex:
    """All runs below a folder. `refresh` looks at the disk; `rows` is what the last look found."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._rows: dict[str, RunRow] = {}
        self._seen: dict[str, tuple[Any, ...]] = {}
        self._refreshing = threading.Lock()

    def rows(self) -> list[RunRow]:
        """All runs, the newest first."""
        return sorted(self._rows.values(), key=lambda row: (-row.started, row.id))

    def get(self, run: str) -> RunRow | None:
        return self._rows.get(run)

    def at(self, folder: str) -> RunRow | None:
        """The run in a folder."""
        path = Path(folder)
        return self._rows.get(path.relative_to(self.root).as_posix()) if path.is_relative_to(self.root) else None

    def refresh(self) -> bool:
        """Look at the disk; whether anything has changed."""
        with self._refreshing:
            rows, seen = {}, {}
            beginning = 0 if self.root == Path() else len(os.path.join(self.root, ""))
            for folder in run_folders(self.root):
                name = os.fspath(folder)[beginning:].replace(os.sep, "/")
                stamp = _stamp(folder)
                seen[name] = stamp
                rows[name] = self._rows[name] if self._seen.get(name) == stamp else read_row(name, folder)
            changed = seen != self._seen
            self._rows, self._seen = rows, seen
            return changed

    def refresh_running(self) -> bool:
        """Look at the runs that were running at the last look, and at no others; whether one has changed."""
        with self._refreshing:
            changed = False
            for name, row in list(self._rows.items()):
                if row.status == RUNNING and (stamp := _stamp(row.folder)) != self._seen.get(name):
                    self._rows[name], self._seen[name] = read_row(name, row.folder), stamp
                    changed = True
            return changed


def _stamp(folder: Path) -> tuple[Any, ...]:
    """What differs when a run has changed. Asked for every run each second, so paths are plain text."""
    found: list[Any] = [writer_of(folder) is not None]
    for name in _WATCHED:
        try:
            status = os.stat(f"{folder}/{name}")
            found += [status.st_mtime_ns, status.st_size]
        except OSError:
            found.append(None)
    return tuple(found)


def read_row(name: str, folder: Path) -> RunRow:
    """Read what the index shows of a run. What cannot be read becomes a problem of the row."""
    problems: list[str] = []
    settings = _read(folder / "args.yaml", yaml.safe_load, problems) or {}
    summary = _read(folder / "summary.json", json.loads, problems) or {}
    metrics = _read(folder / "metrics.csv", _columns, problems) or {}
    annotations = _read(folder / ANNOTATIONS, json.loads, problems, parse_annotations) or Annotations()
    metric = next((m for m in SELECTION_METRICS if best_row(metrics, m) is not None), None)
    return RunRow(
        name, folder, settings, metrics, summary, _status(folder, summary), _started(folder), tuple(problems),
        metric, None if metric is None else best_row(metrics, metric), annotations,
    )  # fmt: skip


def _status(folder: Path, summary: Mapping[str, Any]) -> str:
    if writer_of(folder) is not None:
        return RUNNING
    return FINISHED if summary.get("ended") in ("all epochs are done", True) else STOPPED


def _started(folder: Path) -> float:
    try:
        return (folder / "args.yaml").stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path, parse: Any, problems: list[str], convert: Any = dict) -> Any:
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
        found = parse(path.read_text("utf-8", errors="replace"))
        if not isinstance(found, dict):
            raise ValueError("it does not hold names and values")
        return convert(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, yaml.YAMLError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return None


def _columns(text: str) -> dict[str, list[float | None]]:
    """The columns of metrics.csv. A last line that is being written is left out."""
    first, *rows = csv.reader(io.StringIO(text)) if text else [[]]
    whole = [row for row in rows if len(row) == len(first)]
    return {name: [_number(row[i]) for row in whole] for i, name in enumerate(first)}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
