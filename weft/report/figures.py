"""The charts of a run, from what its folder holds; and the folder plots/ that keeps each as a file."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ..errors import RunError
from ..io.files import replace_file
from . import svg
from .charts import bars, curves, learning_rate
from .gallery import TILE, gallery
from .matrix import confusion, shares
from .run import Pictures, Run, read_run

PARTS = ("train", "validation", "test")
MOST_CURVES = 24
# Columns that are no measurement: when a line was written.
PLACES = ("epoch", "step", "steps", "time", "seconds")
TITLES = {"examples_per_second": ("Speed", "examples/s"), "rate": ("Learning rate", "")}


def plots(folder: str | os.PathLike[str]) -> list[Path]:
    """Draw all charts of a run into its folder plots/, and say where they are."""
    run, target = read_run(Path(folder)), Path(folder) / "plots"
    found: dict[Path, str] = {}
    for name, chart in {**all_curves(run), **others(run)}.items():
        path = target / f"{_file_name(name)}.svg"
        found[path if path not in found else target / f"{_file_name(name)}_{len(found)}.svg"] = chart
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError("plots", f"{target} cannot be written to: {error.strerror or error}.") from error
    for path, chart in found.items():
        replace_file(path, [chart.encode("utf-8", "replace")], "plots")
    return list(found)


def all_curves(run: Run) -> dict[str, str]:
    """A chart for each thing that was measured, the first of them where there are very many."""
    place = across(run)
    return {name: _chart(run, name, columns, place) for name, columns in list(measured(run).items())[:MOST_CURVES]}


def measured(run: Run) -> dict[str, dict[str, list[float | None]]]:
    """The columns of each thing that was measured, loss and accuracy first; train and validation belong together."""
    groups: dict[str, dict[str, list[float | None]]] = {"loss": {}, "accuracy": {}}
    for column, values in run.metrics.items():
        part, _, thing = column.partition("_")
        if column not in PLACES and any(value is not None for value in values):
            name, key = (thing, part) if part in PARTS and thing else (column, column)
            groups.setdefault(name, {})[key] = values
    return {name: columns for name, columns in groups.items() if columns}


def others(run: Run) -> dict[str, str]:
    """The charts that are no curves."""
    found = {}
    if run.confusion is not None:
        found["confusion"] = confusion(run.confusion, run.classes)
        found["classes"] = class_bars(run)
    for name, title, pictures in (
        ("samples", "Sample predictions", run.samples),
        ("mistakes", "Worst mistakes", run.mistakes),
    ):
        if pictures is not None:
            found[name] = picture_chart(pictures, title)
    return found


def across(run: Run) -> str:
    """What charts run over: epochs when each line of the metrics is another epoch, else steps, else lines."""
    epochs = run.metrics.get("epoch", [])
    if epochs and len(set(epochs)) == len(epochs) and all(e is not None and math.isfinite(e) for e in epochs):
        return "epoch"
    return next((name for name in ("step", "steps") if name in run.metrics), "line")


def is_share(name: str, values: list[float | None]) -> bool:
    """Whether values are better read in percent."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return "accuracy" in name and bool(known) and max(known) <= 1


def _chart(run: Run, name: str, columns: dict[str, list[float | None]], place: str) -> str:
    share = is_share(name, [v for values in columns.values() for v in values])
    lines = {key: _points(run, values, place, 100 if share else 1) for key, values in columns.items()}
    title, unit = TITLES.get(name, (name.replace("_", " ").capitalize(), "%" if share else ""))
    if name == "rate" and len(lines) == 1:
        return learning_rate(next(iter(lines.values())), x=place)
    return curves(lines, title, x=place, unit=unit)


def _points(run: Run, values: list[float | None], place: str, factor: float) -> list[tuple[float, float]]:
    """An empty cell is no gap: that number is written more rarely than others."""
    places = run.metrics.get(place) or [float(i) for i in range(1, len(values) + 1)]
    return [(x, factor * v) for x, v in zip(places, values, strict=True) if x is not None and v is not None]


def class_bars(run: Run) -> str:
    """How many of each class were recognized, the worst first where there are many."""
    assert run.confusion is not None
    right = shares(run.confusion).diagonal()
    found = {
        name: 100 * float(part)
        for name, part, n in zip(run.classes, right, run.confusion.sum(axis=1), strict=True)
        if n
    }
    if len(found) > 20:
        worst = sorted(found.items(), key=lambda pair: pair[1])[:20]
        return bars(dict(worst), "The 20 classes recognized worst", unit="%", largest=100)
    return bars(found, "Recognized of each class", unit="%", largest=100)


def picture_chart(pictures: Pictures, title: str) -> str:
    """Pictures with what was predicted for them, and what would have been right."""
    captions: list[str] = []
    right: list[bool | None] = []
    for true, predicted, probability in zip(pictures.true, pictures.predicted, pictures.probability, strict=True):
        right.append(true == predicted if true else None)
        sure = [f"{probability:.0%}"] if 0 <= probability <= 1 else []
        truth = [] if right[-1] is not False else [f"is {svg.fit(true, TILE)}"]
        captions.append(f"{svg.fit(predicted, TILE)}\n{', '.join(sure + truth)}")
    return gallery(pictures.images, captions, title, right=right)


def _file_name(name: str) -> str:
    return "".join(sign if sign.isalnum() else "_" for sign in name)[:60]
