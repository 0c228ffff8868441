"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence

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
