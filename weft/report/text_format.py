"""Formats counts, lists and settings for sentences and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_NAMES = 8  # names of a list that are written out


def counted(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun in singular or plural.

    >>> counted(1, "image"), counted(2000, "image"), counted(2, "class", "classes")
    ('1 image', '2,000 images', '2 classes')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """A list of names for a sentence, shortened after MAX_NAMES.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdefghijkl"))
    ('a', 'a, b and c', 'a, b, c, d, e, f, g, h and 4 more')
    """
    shown, more = list(names[:MAX_NAMES]), len(names) - MAX_NAMES
    last = f"{more} more" if more > 0 else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last


def format_value(value: Any) -> str:
    """A setting's value as a report shows it.

    >>> format_value(None), format_value([28, 28]), format_value({"loss": 0.5, "best": True})
    ('none', '28, 28', 'loss 0.5, best true')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(inner)}" for name, inner in value.items())
    return ", ".join(map(format_value, value)) if isinstance(value, list | tuple) else str(value)
