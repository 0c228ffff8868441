"""Reads the folder of a run as far as it can be read: what is missing or damaged becomes a note, never an error."""

from __future__ import annotations

import csv
import io
import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import RunError, UserError
from .gallery import as_pictures
from .matrix import checked
from .wording import counted

NEEDED = ("args.yaml", "env.json", "metrics.csv", "summary.json")
LONGEST_TEXT = 200_000  # characters of a text that are shown
LARGEST_FILE = 2**28  # bytes that are read of one file
MOST_PICTURES = 40

T = TypeVar("T")


@dataclass
class Pictures:
    """Pictures with what they show, what was predicted, and how surely."""

    images: np.ndarray
    true: list[str]
    predicted: list[str]
    probability: list[float]


@dataclass
class Run:
    """All that a run's folder holds, and notes on what it does not."""

    name: str
    arguments: str = ""
    model: str = ""
    text: str = ""  # that a network wrote
    environment: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[float | None]] = field(default_factory=dict)  # None where nothing was written
    classes: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    samples: Pictures | None = None
    mistakes: Pictures | None = None
    notes: list[str] = field(default_factory=list)  # damage, and files that should be there
    absent: list[str] = field(default_factory=list)  # files that may be there

    def setting(self, name: str) -> str:
        """A setting by its name, from the summary or from the lines of args.yaml; empty where there is none."""
        if isinstance(found := self.summary.get(name), str | int | float):
            return str(found)
        lines = [line.split(":", 1)[1] for line in self.arguments.splitlines() if line.startswith(name + ":")]
        return lines[0].split(" #")[0].strip().strip("'\"") if lines else ""


def read_run(folder: Path) -> Run:
    """Read all files of a run."""
    if not folder.is_dir():
        raise RunError("report", f"{folder} is not a folder. Give the folder of a run, for example runs/train/lenet1.")
    run = Run(folder.resolve().name)
    run.arguments = _read(run, folder / "args.yaml", _text) or ""
    run.environment = _read(run, folder / "env.json", _table) or {}
    run.summary = _read(run, folder / "summary.json", _table) or {}
    run.metrics = _read(run, folder / "metrics.csv", lambda path: _columns(path, run)) or {}
    run.model = _read(run, folder / "model.txt", _text) or ""
    if (folder / "text.txt").exists():  # only networks for text write one
        run.text = _read(run, folder / "text.txt", _text) or ""
    if (found := _read(run, folder / "confusion.csv", _matrix)) is not None:
        run.confusion, run.classes = found
    run.samples = _read(run, folder / "samples.npz", lambda path: _pictures(path, run.classes))
    run.mistakes = _read(run, folder / "mistakes.npz", lambda path: _pictures(path, run.classes))
    return run


def settings(run: Run) -> dict[str, Any]:
    """The lines `name: value` of a run's args.yaml."""
    lines = [line for line in run.arguments.splitlines() if ":" in line and not line.lstrip().startswith("#")]
    return {name.strip(): _read_value(text.strip()) for name, _, text in (line.partition(":") for line in lines)}


def _read_value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _read(run: Run, path: Path, how: Callable[[Path], T]) -> T | None:
    """What a file holds; a note when it holds nothing that can be used."""
    if not path.exists():
        (run.notes if path.name in NEEDED else run.absent).append(
            f"{path.name} is missing" if path.name in NEEDED else path.name
        )
        return None
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ValueError(f"it is larger than {LARGEST_FILE >> 20} MiB")
        return how(path)
    except Exception as error:  # whatever a damaged file sets off, the rest of the run is shown
        reason = error.message if isinstance(error, UserError) else str(error) or type(error).__name__
    run.notes.append(f"{path.name} cannot be read: {reason.rstrip('.')}")
    return None


def _text(path: Path) -> str:
    text = path.read_text("utf-8", errors="replace")
    return (
        text
        if len(text) <= LONGEST_TEXT
        else text[:LONGEST_TEXT] + f"\n... {len(text) - LONGEST_TEXT:,} characters more"
    )


def _table(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8", errors="replace"))
    if not isinstance(found, dict):
        raise ValueError(f"it should hold a table of names and values, not a {type(found).__name__}")
    return found


def _rows(path: Path) -> list[list[str]]:
    text = path.read_text("utf-8-sig", errors="replace").replace("\0", "")
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    if not rows:
        raise ValueError("it is empty")
    return rows


def _columns(path: Path, run: Run) -> dict[str, list[float | None]]:
    """The columns of a table of numbers; cells that are no numbers are nan, empty ones None, lines that are cut off are left out."""
    first, *rows = _rows(path)
    whole = [row for row in rows if len(row) == len(first)]
    if len(whole) < len(rows):
        cut = len(rows) - len(whole)
        verb = "is" if cut == 1 else "are"
        run.notes.append(f"metrics.csv has {counted(cut, 'line')} that {verb} cut off and left out")
    columns = {name.strip(): [row[i] for row in whole] for i, name in enumerate(first) if name.strip()}
    return {name: [_number(cell) if cell.strip() else None for cell in cells] for name, cells in columns.items()}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _matrix(path: Path) -> tuple[np.ndarray, list[str]]:
    """Counts with the names of the classes in the first row and the first column, or counts alone."""
    rows = _rows(path)
    if any(len(row) != len(rows) for row in rows):
        raise ValueError("it should hold as many columns as rows")
    classes = [str(i) for i in range(len(rows))]
    if math.isnan(_number(rows[0][0])):
        classes, rows = [row[0] for row in rows[1:]], [row[1:] for row in rows[1:]]
    return checked([[float(cell) for cell in row] for row in rows], classes), classes


def _pictures(path: Path, classes: list[str]) -> Pictures:
    with zipfile.ZipFile(path) as packed:
        if sum(part.file_size for part in packed.infolist()) > LARGEST_FILE:
            raise ValueError(f"it unpacks to more than {LARGEST_FILE >> 20} MiB")
    with np.load(path, allow_pickle=False) as found:
        images = as_pictures(found["images"])[:MOST_PICTURES]
        columns = [_list(found.get(name, []), len(images)) for name in ("true", "predicted", "probability")]
        names = [str(name) for name in found["classes"].tolist()] if "classes" in found else classes
    true, predicted = ([_class_name(value, names) for value in column] for column in columns[:2])
    return Pictures(images, true, predicted, [_number(str(value)) for value in columns[2]])


def _list(values: Any, count: int) -> list[Any]:
    """As many values as there are pictures; unknown ones are None."""
    known = list(np.asarray(values).reshape(-1)[:count].tolist())
    return known + [None] * (count - len(known))


def _class_name(value: Any, classes: list[str]) -> str:
    if value is None:
        return ""
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else str(value)
