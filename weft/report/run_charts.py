"""The charts of a run, and the folder plots/ with one file per chart."""

from __future__ import annotations

import math
import os
from pathlib import Path

from ..errors import RunError
from ..io.files import replace_file
from . import svg
from .charts import bars, curves, learning_rate
from .confusion_matrix import confusion, row_fractions
from .gallery import TILE, gallery
from .run_record import ImageSamples, RunRecord, read_run

SPLITS = ("train", "validation", "test")
MAX_CURVES = 24
# Columns that are not metrics but positions in the run.
X_COLUMNS = ("epoch", "step", "steps", "time", "seconds")
TITLES = {"examples_per_second": ("Speed", "examples/s"), "rate": ("Learning rate", "")}


def plots(folder: str | os.PathLike[str]) -> list[Path]:
    """Write all charts of a run into its folder plots/ and return their paths."""
    run, target = read_run(Path(folder)), Path(folder) / "plots"
    found: dict[Path, str] = {}
    for name, chart in {**all_curves(run), **other_charts(run)}.items():
        path = target / f"{_file_name(name)}.svg"
        found[path if path not in found else target / f"{_file_name(name)}_{len(found)}.svg"] = chart
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise RunError("plots", f"{target} cannot be written to: {error.strerror or error}.") from error
    for path, chart in found.items():
        replace_file(path, [chart.encode("utf-8", "replace")], "plots")
    return list(found)


def all_curves(run: RunRecord) -> dict[str, str]:
    """A chart per metric, for at most MAX_CURVES metrics."""
    place = x_column(run)
    return {name: _chart(run, name, columns, place) for name, columns in list(metric_groups(run).items())[:MAX_CURVES]}


def metric_groups(run: RunRecord) -> dict[str, dict[str, list[float | None]]]:
    """The columns of each metric, grouped over the splits; loss and accuracy come first."""
    groups: dict[str, dict[str, list[float | None]]] = {"loss": {}, "accuracy": {}}
    for column, values in run.metrics.items():
        part, _, thing = column.partition("_")
        if column not in X_COLUMNS and any(value is not None for value in values):
            name, key = (thing, part) if part in SPLITS and thing else (column, column)
            groups.setdefault(name, {})[key] = values
    return {name: columns for name, columns in groups.items() if columns}


def other_charts(run: RunRecord) -> dict[str, str]:
    """The charts other than curves."""
    found = {}
    if run.confusion is not None:
        found["confusion"] = confusion(run.confusion, run.classes)
        found["classes"] = recall_bars(run)
    for name, title, shown in (
        ("samples", "Sample predictions", run.samples),
        ("mistakes", "Worst mistakes", run.mistakes),
    ):
        if shown is not None:
            found[name] = image_chart(shown, title)
    return found


def x_column(run: RunRecord) -> str:
    """The column of the x axis: epoch if each line is another epoch, else step, else the line number."""
    epochs = run.metrics.get("epoch", [])
    if epochs and len(set(epochs)) == len(epochs) and all(e is not None and math.isfinite(e) for e in epochs):
        return "epoch"
    return next((name for name in ("step", "steps") if name in run.metrics), "line")


def is_fraction(name: str, values: list[float | None]) -> bool:
    """Whether values are fractions, shown in percent."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return "accuracy" in name and bool(known) and max(known) <= 1


def _chart(run: RunRecord, name: str, columns: dict[str, list[float | None]], place: str) -> str:
    share = is_fraction(name, [v for values in columns.values() for v in values])
    lines = {key: _points(run, values, place, 100 if share else 1) for key, values in columns.items()}
    title, unit = TITLES.get(name, (name.replace("_", " ").capitalize(), "%" if share else ""))
    if name == "rate" and len(lines) == 1:
        return learning_rate(next(iter(lines.values())), x=place)
    return curves(lines, title, x=place, unit=unit)


def _points(run: RunRecord, values: list[float | None], place: str, factor: float) -> list[tuple[float, float]]:
    """The (x, value) points of a column. Empty cells leave no gap: some metrics are measured less often."""
    places = run.metrics.get(place) or [float(i) for i in range(1, len(values) + 1)]
    return [(x, factor * v) for x, v in zip(places, values, strict=True) if x is not None and v is not None]


def recall_bars(run: RunRecord) -> str:
    """A bar chart of the recall of each class; of the 20 lowest if there are more than 20 classes."""
    assert run.confusion is not None
    right = row_fractions(run.confusion).diagonal()
    found = {
        name: 100 * float(part)
        for name, part, n in zip(run.classes, right, run.confusion.sum(axis=1), strict=True)
        if n
    }
    if len(found) > 20:
        worst = sorted(found.items(), key=lambda pair: pair[1])[:20]
        return bars(dict(worst), "The 20 classes with the lowest recall", unit="%", largest=100)
    return bars(found, "Recall by class", unit="%", largest=100)


def image_chart(shown: ImageSamples, title: str) -> str:
    """Images with their predicted class, probability, and the true class where it differs."""
    captions: list[str] = []
    right: list[bool | None] = []
    for true, predicted, probability in zip(shown.true, shown.predicted, shown.probability, strict=True):
        right.append(true == predicted if true else None)
        sure = [f"{probability:.0%}"] if 0 <= probability <= 1 else []
        truth = [] if right[-1] is not False else [f"true: {svg.fit(true, TILE)}"]
        captions.append(f"{svg.fit(predicted, TILE)}\n{', '.join(sure + truth)}")
    return gallery(shown.images, captions, title, right=right)


def _file_name(name: str) -> str:
    return "".join(sign if sign.isalnum() else "_" for sign in name)[:60]
