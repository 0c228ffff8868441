"""The table of epochs that a training prints line by line: it fits into 80 columns, and marks the best epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PARTS = ("train", "validation")
_SHORT = {"accuracy": "acc", "binary_accuracy": "acc", "token_accuracy": "acc"}
_WIDTH = 9  # of a column, unless its title is longer


def header(row: Mapping[str, Any], epochs: int) -> str:
    """The titles of the columns."""
    titles = [f"{_title(part, name):>{_WIDTH}}" for part, name in _names(row)]
    return " ".join([" " * len(_epoch(row, epochs)), *titles, f"{'/s':>9}", f"{'time':>8}"])


def line(row: Mapping[str, Any], epochs: int) -> str:
    """The numbers of an epoch.

    >>> row = {"epoch": 2, "train_loss": 0.5, "validation_accuracy": 0.75, "examples_per_second": 1234.0, "seconds": 3.21}
    >>> print(header(row, 10)); print(line({**row, "is_best": True}, 10))
                     loss   val acc        /s     time
    epoch  2/10    0.5000   75.00 %     1,234    3.2 s  best

    A long title widens its column:

    >>> row = {"epoch": 1, "train_confident_share": 0.5, "examples_per_second": 1234.0, "seconds": 3.21}
    >>> print(header(row, 1)); print(line(row, 1))
              confident_share        /s     time
    epoch 1/1          0.5000     1,234    3.2 s
    """
    cells = [
        _number(name, row[f"{part}_{name}"]).rjust(max(_WIDTH, len(_title(part, name)))) for part, name in _names(row)
    ]
    text = " ".join(
        [_epoch(row, epochs), *cells, f"{row['examples_per_second']:>9,.0f}", f"{_duration(row['seconds']):>8}"]
    )
    return f"{text}  best" if row.get("is_best") else text


def _names(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(part, name.removeprefix(f"{part}_")) for part in _PARTS for name in row if name.startswith(f"{part}_")]


def _title(part: str, name: str) -> str:
    return f"{'val ' if part == 'validation' else ''}{_SHORT.get(name, name)}"


def _epoch(row: Mapping[str, Any], epochs: int) -> str:
    return f"epoch {int(row['epoch']):{len(str(epochs))}}/{epochs}"


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name.endswith("accuracy") or name == "top5" else f"{value:.4f}"


def _duration(seconds: float) -> str:
    """12.3 s, 2:05 or 1:02:05."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
