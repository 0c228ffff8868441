"""How verbs print what they found: tables as plain text, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..jobs.schema import as_text


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = ()) -> str:
    """Columns as wide as their longest text; those in `left` begin at the left, all others end at the right.

    >>> print(table(["run", "loss"], [["a", "0.5"], ["second", "12"]], left=["run"]))
    run     loss
    ------------
    a        0.5
    second    12
    """
    cells = [list(titles), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    justify = [str.ljust if title in left else str.rjust for title in titles]
    lines = ["  ".join(map(lambda j, c, w: j(c, w), justify, line, widths)).rstrip() for line in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def pairs(values: Mapping[str, Any]) -> str:
    """A line for each name and its value."""
    wide = max(map(len, values), default=0)
    return "\n".join(f"  {name:{wide}}  {_text(value)}".rstrip() for name, value in values.items())


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else as_text(value)


def number_text(name: str, value: Any) -> str:
    """A number as people read it."""
    if isinstance(value, float):
        return f"{100 * value:.2f} %" if "accuracy" in name else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def as_json(value: Any) -> str:
    """JSON knows no nan: it becomes null.

    >>> as_json([0.5, float("nan")])
    '[\\n 0.5,\\n null\\n]'
    """
    return json.dumps(_finite(value), indent=1, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
