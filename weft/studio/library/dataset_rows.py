"""The datasets of a studio for tables: the newest version of each, as its dataset.json describes it. Files are read again when they have changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...records import dataclass

DESCRIPTION = "dataset.json"
_VERSION = re.compile(r"v(\d+)")
_LARGEST = 16 << 20  # bytes; a larger description is not read


@dataclass(frozen=True)
class DatasetRow:
    """A dataset in its newest version."""

    name: str
    version: int
    versions: int
    images: int
    classes: int
    shape: str
    changed: float

    @property
    def title(self) -> str:
        return f"{self.name} v{self.version}"


class DatasetIndex:
    """The datasets below a folder: NAME/vN."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[float, dict[str, Any]]] = {}

    def rows(self) -> list[DatasetRow]:
        """All datasets by name."""
        try:
            folders = sorted(one for one in self.folder.iterdir() if one.is_dir() and not one.name.startswith("."))
        except OSError:
            return []
        return [row for folder in folders if (row := self._row(folder)) is not None]

    def _row(self, folder: Path) -> DatasetRow | None:
        found = {int(match[1]): one for one in folder.iterdir() if (match := _VERSION.fullmatch(one.name))}
        whole = {number: one for number, one in found.items() if (one / DESCRIPTION).is_file()}
        if not whole:
            return None
        newest = max(whole)
        changed, about = self._about(whole[newest] / DESCRIPTION)
        shape = about.get("shape")
        return DatasetRow(
            folder.name, newest, len(whole), _total(about.get("counts")), len(about.get("classes") or ()),
            " × ".join(map(str, shape)) if isinstance(shape, list) else "–", changed,
        )  # fmt: skip

    def _about(self, path: Path) -> tuple[float, dict[str, Any]]:
        try:
            status = path.stat()
            if path in self._known and self._known[path][0] == status.st_mtime:
                return self._known[path]
            about = json.loads(path.read_text("utf-8")) if status.st_size <= _LARGEST else {}
        except (OSError, ValueError):
            return 0.0, {}
        self._known[path] = status.st_mtime, about if isinstance(about, dict) else {}
        return self._known[path]


def _total(counts: Any) -> int:
    """How many images there are: counts by split, each a number or numbers by class."""
    if isinstance(counts, dict):
        return sum(map(_total, counts.values()))
    return counts if isinstance(counts, int) else 0
