"""Which epoch is best: the one place that says so, for training and for every page about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

# The first of these that was measured decides. Less is better for a loss.
JUDGES = (
    "validation_accuracy", "validation_binary_accuracy", "validation_loss", "test_accuracy", "test_loss",
    "train_accuracy", "train_binary_accuracy", "train_loss",
)  # fmt: skip


def merit(name: str, row: Mapping[str, float | None]) -> tuple[float, float]:
    """How good a row of numbers is by one of them: more is better. Of equal accuracies, and few examples have few, the loss decides."""
    value, loss = row[name], row.get(f"{name.partition('_')[0]}_loss")
    assert value is not None
    rest = -loss if loss is not None and math.isfinite(loss) else -math.inf
    return (-value if name.endswith("loss") else value), rest


def best_line(metrics: Mapping[str, Sequence[float | None]], name: str) -> int | None:
    """The line of a table whose number of this name is the best, the first of equals; None where there is no number."""
    found: int | None = None
    for line, value in enumerate(metrics.get(name, [])):
        if value is None or not math.isfinite(value):
            continue
        if found is None or merit(name, _row(metrics, line)) > merit(name, _row(metrics, found)):
            found = line
    return found


def _row(metrics: Mapping[str, Sequence[float | None]], line: int) -> dict[str, float | None]:
    return {name: values[line] for name, values in metrics.items() if line < len(values)}
