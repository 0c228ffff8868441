"""The files of a run."""

from __future__ import annotations

from pathlib import Path

from .runs import RunRow


def files_of(row: RunRow) -> list[tuple[Path, int]]:
    """The files of a run below its folder, with their sizes."""
    found = [path for path in sorted(row.folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return [(path.relative_to(row.folder), path.stat().st_size) for path in found]
