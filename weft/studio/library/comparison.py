"""Runs side by side: their results, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence

from ...jobs.schema import as_text
from ...jobs.settings import OF_ONE_RUN
from ...records import dataclass
from .runs import RunRow


@dataclass(frozen=True)
class SettingDifference:
    """A setting that is not the same in all runs: its text in each, None where it equals that of the first."""

    name: str
    first: str
    others: tuple[str | None, ...]


def differences(rows: Sequence[RunRow]) -> tuple[list[SettingDifference], int]:
    """The settings that differ from those of the first run, and how many settings there are."""
    names = list(dict.fromkeys(name for row in rows for name in row.settings if name not in OF_ONE_RUN))
    found = []
    for name in names:
        texts = [as_text(row.settings.get(name)) for row in rows]
        if len(set(texts)) > 1:
            found.append(
                SettingDifference(name, texts[0], tuple(None if text == texts[0] else text for text in texts[1:]))
            )
    return found, len(names)


def common_metrics(rows: Sequence[RunRow]) -> list[str]:
    """The metrics of the charts: what the best epochs are chosen by, and the loss."""
    wanted = ["validation_accuracy", "validation_binary_accuracy", "validation_loss", "train_accuracy", "train_loss"]
    found = [name for name in wanted if any(row.last(name) is not None for row in rows)]
    accuracy = next((name for name in found if not name.endswith("loss")), None)
    loss = next((name for name in found if name.endswith("loss")), None)
    return [name for name in (accuracy, loss) if name is not None]


def best_of(rows: Sequence[RunRow], metric: str) -> set[str]:
    """The runs with the best value of a metric at their best epoch; none if all have the same."""
    values = {row.id: value for row in rows if (value := row.value_at(metric, row.best_index)) is not None}
    if len(set(values.values())) < 2:
        return set()
    best = min(values.values()) if metric.endswith("loss") else max(values.values())
    return {run for run, value in values.items() if value == best}
