"""Whether files have changed, without reading them: pages that follow a run look each second."""

from __future__ import annotations

from pathlib import Path


def stamp(*paths: Path) -> tuple[tuple[int, int] | None, ...]:
    """What differs when a file was written, or a folder has gained or lost a file; None for what does not exist."""
    found: list[tuple[int, int] | None] = []
    for path in paths:
        try:
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size))
        except OSError:
            found.append(None)
    return tuple(found)
