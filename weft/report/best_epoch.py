"""Selects the best epoch of a run; shared by training and by all reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# The first of these metrics that was measured is used. For a loss, lower is better.
SELECTION_METRICS = (
    "validation_accuracy", "validation_f1", "validation_binary_accuracy", "validation_loss", "test_accuracy", "test_loss",
    "train_accuracy", "train_f1", "train_binary_accuracy", "train_loss",
)  # fmt: skip


def ranking_key(name: str, row: Mapping[str, float | None]) -> tuple[float, float]:
    """The key that ranks epochs by one metric: higher is better. Ties in accuracy, common on small sets, are broken by the loss."""
    value, loss = row[name], row.get(f"{name.partition('_')[0]}_loss")
    assert value is not None
    rest = -loss if loss is not None and math.isfinite(loss) else -math.inf
    return (-value if name.endswith("loss") else value), rest


def best_row(metrics: Mapping[str, Sequence[float | None]], name: str) -> int | None:
    """The row with the best value of a metric, the first of equals; None if the metric has no finite value."""
    found: int | None = None
    for line, value in enumerate(metrics.get(name, [])):
        if value is None or not math.isfinite(value):
            continue
        if found is None or ranking_key(name, _row(metrics, line)) > ranking_key(name, _row(metrics, found)):
            found = line
    return found


def _row(metrics: Mapping[str, Sequence[float | None]], line: int) -> dict[str, float | None]:
    return {name: values[line] for name, values in metrics.items() if line < len(values)}
