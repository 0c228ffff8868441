"""Several runs compared: results at the best, the last or a chosen epoch, what mattered among their settings, and where their networks disagree."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...records import dataclass
from ...report.agreement import Agreement, agreement, comparable
from ...report.importance import Importances, importances
from ...report.parallel_coordinates import ParallelAxis, parallel_axes
from ...report.predictions import Predictions
from .comparison import differences
from .run_images import predictions_of, thumbnails_of
from .runs import RunRow

NOT_METRICS = ("epoch", "steps", "seconds")
AT = ("best", "last")  # or the number of an epoch
FEWEST = 3  # runs of a sweep
AXES = 8  # of parallel coordinates


def metrics_of(rows: Sequence[RunRow]) -> list[str]:
    """All metrics of the runs, accuracies of validation first."""
    found = dict.fromkeys(name for row in rows for name in row.metrics if name not in NOT_METRICS)
    return sorted(
        found,
        key=lambda name: (not name.startswith("validation"), "accuracy" not in name, not name.startswith("train")),
    )


def value_at(row: RunRow, metric: str, at: str) -> float | None:
    """A metric at the best epoch of the run, at its last one, or at the epoch of this number."""
    if at == "last":
        return row.last(metric)
    if at == "best":
        return row.value_at(metric, row.best_index)
    epochs = row.metrics.get("epoch", [])
    place = next((i for i, epoch in enumerate(epochs) if epoch == float(at)), None)
    return row.value_at(metric, place)


def best_runs(rows: Sequence[RunRow], metric: str, at: str) -> set[str]:
    """The runs with the best value; none if all have the same."""
    values = {row.id: value for row in rows if (value := value_at(row, metric, at)) is not None}
    if len(set(values.values())) < 2:
        return set()
    best = min(values.values()) if "loss" in metric or metric in ("mae", "mse") else max(values.values())
    return {run for run, value in values.items() if value == best}


def table(rows: Sequence[RunRow], at: str = "best") -> list[dict[str, Any]]:
    """A row for each run: its metrics, epochs, parameters and duration."""
    return [
        {
            "run": row.id, "model": row.model, "data": row.data, "status": row.status, "epochs": row.epochs, "best_epoch": row.best_epoch,
            "parameters": row.summary.get("parameters"), "seconds": row.seconds,
            **{metric: value_at(row, metric, at) for metric in metrics_of(rows)},
        }
        for row in rows
    ]  # fmt: skip


def table_csv(rows: Sequence[RunRow], at: str = "best") -> str:
    """The table with the settings that differ, for spreadsheets."""
    found, _ = differences(rows)
    text = io.StringIO()
    lines = table(rows, at)
    for i, line in enumerate(lines):
        line |= {f"setting {one.name}": one.first if i == 0 or one.others[i - 1] is None else one.others[i - 1] for one in found}  # fmt: skip
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


# --- sweeps ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepView:
    """Runs as lines over the settings that differ, and the importance of these settings for the metric."""

    metric: str
    runs: list[RunRow]
    axes: list[ParallelAxis]
    importance: Importances | None

    @property
    def ranks(self) -> list[float]:
        """From 0 for the worst run to 1 for the best, by their order."""
        places = [-p if "loss" in self.metric else p for p in self.axes[-1].places]
        order = sorted(set(places))
        return [order.index(p) / max(1, len(order) - 1) for p in places]


def sweep_view(rows: Sequence[RunRow], metric: str | None = None) -> SweepView | None:
    """None for fewer than three runs with a result, or runs with the same settings."""
    chosen = metric or next((row.best_metric for row in rows if row.best_metric), None)
    if chosen is None:
        return None
    shown = [row for row in rows if value_at(row, chosen, "best") is not None]
    names = [one.name for one in differences(shown)[0]] if shown else []
    if len(shown) < FEWEST or not names:
        return None
    settings = {name: [_plain(row.settings.get(name)) for row in shown] for name in names}
    values = [value_at(row, chosen, "best") for row in shown]
    found = importances(settings, [v for v in values if v is not None])
    order = [one.name for one in found.settings] if found else names
    axes = parallel_axes({name: settings[name] for name in order[:AXES]}, chosen, values)
    return SweepView(chosen, shown, axes, found)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# --- predictions ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreements:
    """Networks on the same examples: how often they agree, and the examples that they disagree on."""

    rows: list[RunRow]
    predictions: list[Predictions]
    found: Agreement

    @property
    def examples(self) -> int:
        return len(self.predictions[0].true)

    def shown(self, limit: int) -> list[dict[str, Any]]:
        """Examples with what each network predicts, and the run that has a picture of it."""
        first = self.predictions[0]
        pictures = [(row.id, thumbnails_of(row.folder)) for row in self.rows]
        found = []
        for i in map(int, self.found.disagree[:limit]):
            run = next((run for run, one in pictures if one is not None and i in one.places), None)
            votes = [
                {"predicted": one.classes[int(one.probabilities[i].argmax())], "probability": float(one.probabilities[i].max())}
                for one in self.predictions
            ]  # fmt: skip
            found.append({"index": i, "true": first.classes[first.true[i]], "picture": run, "votes": votes})
        return found

    def facts(self, limit: int) -> dict[str, Any]:
        """As the API shows it."""
        tests = [
            {"first": self.rows[i].id, "second": self.rows[j].id, **asdict(test)} for (i, j), test in self.found.tests.items()
        ]  # fmt: skip
        return {
            "runs": [row.id for row in self.rows], "examples": self.examples, "split": self.predictions[0].split,
            "disagree": len(self.found.disagree), "equal": self.found.equal.tolist(), "tests": tests, "shown": self.shown(limit),
        }  # fmt: skip


def disagreements(rows: Sequence[RunRow]) -> Disagreements | None:
    """None unless two runs or more have predictions of the same examples; runs with others are left out."""
    known = [(row, found) for row in rows if (found := predictions_of(row.folder)) is not None]
    if not known:
        return None
    same = [(row, found) for row, found in known if comparable([known[0][1], found])]
    if len(same) < 2:
        return None
    return Disagreements(
        [row for row, _ in same], [found for _, found in same], agreement([found for _, found in same])
    )
