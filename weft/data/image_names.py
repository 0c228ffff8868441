"""The names of a split's images: names.txt has one a line, with line breaks and backslashes escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from .checksums import damaged, read_bytes

NAMES = "names.txt"
_ESCAPED = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}


def write_names(folder: Path, names: Iterable[str]) -> None:
    """Write the names of a split's images."""
    lines = "".join(_escape(name) + "\n" for name in names)
    (folder / NAMES).write_bytes(lines.encode("utf-8", "surrogateescape"))


def read_names(folder: Path, count: int) -> list[str]:
    """The names of the images of a split, of which there are `count`."""
    lines = read_bytes(folder / NAMES).decode("utf-8", "surrogateescape").split("\n")[:-1]
    if len(lines) != count:
        raise damaged(folder / NAMES, f"it names {len(lines)} images, there are {count}")
    return [re.sub(r"\\[\\nr]", lambda found: _ESCAPED[found[0]], line) for line in lines]


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
