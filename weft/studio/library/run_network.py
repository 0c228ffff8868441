"""Networks of runs that are kept as one program, whose layers cannot be looked into."""

from __future__ import annotations

from pathlib import Path

from ...jobs.job import ENSEMBLE, REWRITTEN


def why_without_layers(folder: Path) -> str:
    """Why the layers of a run cannot be looked into; nothing if they can."""
    if not (folder / REWRITTEN).exists():
        return ""
    if (folder / ENSEMBLE).exists():
        return f"{folder.name} is an ensemble, kept as one program. Look into the layers of its members."
    return f"A compression has changed the layers of {folder.name}, and keeps its network as one program. The tab Compress shows its layers."
