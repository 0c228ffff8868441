"""The tabs of runs and of groups of runs: sweeps and cross-validations."""

from __future__ import annotations

from collections.abc import Callable

from ..library.feed import Snapshot
from .context import Studio
from .rendering import render


def group_header(studio: Studio, active: str) -> tuple[str, Callable[[Snapshot], str]]:
    """Name and renderer of the header of these pages."""
    return f"group header {active}", lambda _: render("group_header.html", active=active, base=studio.config.prefix)


def group_tabs(studio: Studio, active: str) -> None:
    """Add the tabs, with how many there are of each."""

    def html(snapshot: Snapshot) -> str:
        tabs = [("runs", "All runs", snapshot.runs), ("sweeps", "Sweeps", len(snapshot.sweeps)), ("folds", "Cross-validations", len(snapshot.folds))]  # fmt: skip
        return render("group_tabs.html", tabs=tabs, active=active, base=studio.config.prefix)

    studio.live.add(f"group tabs {active}", html)
