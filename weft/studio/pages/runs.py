"""All runs."""

from __future__ import annotations

from nicegui import ui

from ..ui.context import Studio
from ..ui.frame import frame, studio_page
from ..ui.run_groups import group_header, group_tabs
from ..ui.run_table import RunTable


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/runs")
    def runs() -> None:
        with frame(studio, "Runs", "runs", group_header(studio, "runs")):
            group_tabs(studio, "runs")
            with ui.element("section").classes("card").props('aria-label="Runs"'):
                RunTable(studio)
