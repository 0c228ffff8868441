"""Output of verbs: tables as plain text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import Box
from rich.cells import cell_len
from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ..jobs.schema import as_text
from .display import console

_RULE = Box("    \n    \n -- \n    \n    \n    \n    \n    \n".replace(" -- ", "----"), ascii=True)
_UNLIMITED = 100_000  # width of output that is not a terminal


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str] = (), optional: Sequence[str] = ()
) -> str:
    """Columns as wide as their longest text; those in `left` begin at the left, all others end at the right.

    On a terminal that is too narrow, columns in `optional` are left out, the first ones first; then texts are folded.

    >>> print(table(["run", "loss"], [["a", "0.5"], ["second", "12"]], left=["run"]))
    run     loss
    ------------
    a        0.5
    second    12
    """
    found = Table(box=_RULE, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1), header_style="bold")
    shown = _fitting(titles, rows, optional)
    for number, title in enumerate(shown):
        justify: JustifyMethod = "left" if title in left else "right"
        found.add_column(title, justify=justify, overflow="fold", no_wrap=number == 0)  # names can be copied
    for row in rows:
        found.add_row(*(Text(cell) for title, cell in zip(titles, row, strict=True) if title in shown))
    return rendered(found)


def _fitting(titles: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str]) -> Sequence[str]:
    """The columns that are shown."""
    screen, shown, dropped = console(), list(titles), list(optional)
    widths = {title: max(map(cell_len, column)) for title, *column in zip(titles, titles, *rows, strict=True)}
    while screen.is_terminal and dropped and sum(widths[title] + 2 for title in shown) - 2 > screen.width:
        shown.remove(dropped.pop(0))
    return shown


def as_csv(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The same as comma-separated values; what is missing is empty.

    >>> print(as_csv(["run", "loss"], [["a", 0.5], ["b, c", None]]))
    run,loss
    a,0.5
    "b, c",
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    return text.getvalue().rstrip("\n")


def rendered(what: RenderableType, widest: int = _UNLIMITED) -> str:
    """Text rendered by rich: for a terminal its colours and at most its width, else without colours."""
    screen = console()
    screen.width = min(screen.width, widest) if screen.is_terminal else widest
    with screen.capture() as text:
        screen.print(what, crop=False)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def pairs(values: Mapping[str, Any]) -> str:
    """A line for each name and its value."""
    wide = max(map(len, values), default=0)
    return "\n".join(f"  {name:{wide}}  {_text(value)}".rstrip() for name, value in values.items())


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else as_text(value)


def number_text(name: str, value: Any) -> str:
    """A number as text."""
    if isinstance(value, float):
        return f"{100 * value:.2f} %" if "accuracy" in name else f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def as_json(value: Any) -> str:
    """The value as JSON, which has no nan: it becomes null.

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
