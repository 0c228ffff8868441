"""Cells of the strip of metrics of a run."""

from __future__ import annotations

from ...records import dataclass
from ..library.runs import RunRow
from ..ui.formats import is_share, metric_name, metric_value, size, three_figures


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
    if row.made_by:
        return _compression_tiles(row) if row.made_by == "compression" else _ensemble_tiles(row)
    names = [row.best_metric, "validation_loss", "train_loss", "train_accuracy"]
    found = [_tile(row, name) for name in dict.fromkeys(names) if name and row.last(name) is not None]
    versus = _versus(row, before)
    found = found[: 3 if versus else 4]
    rate = row.last("rate")
    if rate is not None:
        found.append(
            MetricTile(
                "Learning rate", three_figures(rate), "", str(row.settings.get("schedule") or "").replace("_", " ")
            )
        )
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


def made_text(row: RunRow) -> str:
    """What a run that was not trained is."""
    if row.made_by == "ensemble":
        members = row.summary["ensemble"].get("members") or []
        return f"Ensemble of {len(members)} runs"
    return f"Compressed; {row.epochs} epochs of retraining" if row.epochs else "Compressed"


def _compression_tiles(row: RunRow) -> list[MetricTile]:
    """The point that was kept: accuracy, size and speed."""
    point, found = row.summary["compression"], _split_tiles(row)
    before = f"{point['ratio']:.1f} times smaller" if point.get("ratio") else ""
    if point.get("bytes"):
        number, _, unit = size(point["bytes"]).partition(" ")
        found.append(MetricTile("Size, packed", number, unit, before))
    if point.get("latency_ms"):
        speed = f"{point['speed']:.2f} times as fast" if point.get("speed") else ""
        found.append(MetricTile("Latency of one", three_figures(point["latency_ms"]), "ms", speed))
    return found


def _ensemble_tiles(row: RunRow) -> list[MetricTile]:
    """What it reaches, and how that compares with its best member."""
    known, found = row.summary["ensemble"], _split_tiles(row)
    split, result = known.get("split"), known.get("result") or {}
    metric = next((name for name in result if is_share(name)), None)
    members = [one[split][metric] for one in known.get("members", ()) if metric in (one.get(split) or {})]
    if metric is not None and members:
        gain = result[metric] - max(members)
        tone = "" if gain == 0 else "up" if gain > 0 else "down"
        found.append(MetricTile("Versus the best member", f"{100 * gain:+.1f}", "points", f"of {len(members)}, on the {split} split", tone))  # fmt: skip
    return found


def _split_tiles(row: RunRow) -> list[MetricTile]:
    """The numbers on the split that decided nothing."""
    split = next((name for name in ("test", "validation") if isinstance(row.summary.get(name), dict)), None)
    numbers = row.summary[split] if split is not None else {}
    ordered = sorted(numbers, key=lambda name: not is_share(name))[:2]
    return [
        MetricTile(
            f"{split.capitalize()} {metric_name(name)}", *metric_value(name, numbers[name]).partition(" ")[::2], ""
        )
        for name in ordered
        if split is not None
    ]


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
