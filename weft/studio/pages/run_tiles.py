"""Cells of the strip of metrics of a run."""

from __future__ import annotations

from dataclasses import dataclass

from ..library.runs import RunRow
from ..ui.formats import is_share, metric_name, metric_value, three_figures


@dataclass(frozen=True)
class MetricTile:
    """A cell of the strip of metrics."""

    title: str
    number: str
    unit: str
    context: str
    tone: str = ""  # up or down, for a comparison


def metric_tiles(row: RunRow, before: RunRow | None) -> list[MetricTile]:
    """Up to five numbers: what the best epoch is chosen by first, and how it compares with the run before on the same data."""
    names = [row.best_metric, "validation_loss", "train_loss", "train_accuracy"]
    found = [_tile(row, name) for name in dict.fromkeys(names) if name and row.last(name) is not None]
    versus = _versus(row, before)
    found = found[: 3 if versus else 4]
    rate = row.last("rate")
    if rate is not None:
        found.append(MetricTile("Learning rate", three_figures(rate), "", str(row.settings.get("schedule") or "")))
    return found + versus


def _tile(row: RunRow, name: str) -> MetricTile:
    number, _, unit = metric_value(name, row.last(name)).partition(" ")
    context = "after the last epoch"
    if row.best_index is not None and name.startswith("validation"):
        context = f"{metric_value(name, row.value_at(name, row.best_index))} at best epoch {row.best_epoch}"
        if name == row.best_metric:
            context = f"best {metric_value(name, row.best)} at epoch {row.best_epoch}"
    title = metric_name(name)
    return MetricTile(title[:1].upper() + title[1:], number, unit, context if is_share(name) or "loss" in name else "")


def _versus(row: RunRow, before: RunRow | None) -> list[MetricTile]:
    """The same metric at the same epoch of the run before."""
    metric = row.best_metric
    if before is None or metric is None:
        return []
    epoch = min(row.epochs, before.epochs)
    own, other = row.value_at(metric, epoch - 1), before.value_at(metric, epoch - 1)
    if not epoch or own is None or other is None:
        return []
    gain = own - other
    ahead = gain < 0 if metric.endswith("loss") else gain > 0
    same = "at the same epoch" if epoch == row.epochs else f"at epoch {epoch}"
    words = "the same" if gain == 0 else "ahead" if ahead else "behind"
    number = f"{100 * gain:+.1f}" if is_share(metric) else f"{gain:+.3g}"
    tone = "" if gain == 0 else "up" if ahead else "down"
    return [MetricTile(f"Versus {before.name}", number, "points" if is_share(metric) else "", f"{words} {same}", tone)]
