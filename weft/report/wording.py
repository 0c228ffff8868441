"""Numbers, lists and values of settings as people read them, in sentences and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 8  # names of a list that are written out


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and what it counts.

    >>> counted(1, "image"), counted(2000, "image"), counted(2, "class", "classes")
    ('1 image', '2,000 images', '2 classes')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(list("abcdefghijkl"))
    ('a', 'a, b and c', 'a, b, c, d, e, f, g, h and 4 more')
    """
    shown, more = list(names[:MOST]), len(names) - MOST
    last = f"{more} more" if more > 0 else shown.pop()
    return f"{', '.join(shown)} and {last}" if shown else last


def value_words(value: Any) -> str:
    """A value as a page shows it.

    >>> value_words(None), value_words([28, 28]), value_words({"loss": 0.5, "best": True})
    ('none', '28, 28', 'loss 0.5, best true')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_words(inner)}" for name, inner in value.items())
    return ", ".join(map(value_words, value)) if isinstance(value, list | tuple) else str(value)
