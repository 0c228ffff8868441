"""The tab Compress of a run: its form, the Pareto front of the points so far, and the layers of one point."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from ..library.compression_form import FIELDS, LISTS, MORE, WIDE, check_compression_form
from ..library.compressions import CompressionView
from ..library.feed import Snapshot
from ..library.runs import RunRow
from ..ui.compression_chart import BY, compression_chart
from ..ui.compression_tiles import compression_tiles, point_rows, said_of_target
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.rendering import render


def compress_tab(studio: Studio, row: RunRow) -> None:
    """Add the tab to the page."""
    base = studio.config.prefix
    ui.add_head_html(f'<link rel="stylesheet" href="{base}/assets/compress.css">')
    ui.add_head_html(f'<script src="{base}/assets/forms.js" defer></script>')
    CompressTab(studio, row)


class CompressTab:
    """One compression of the run, and one of its points, chosen by the viewer. It follows the feed."""

    def __init__(self, studio: Studio, row: RunRow) -> None:
        self.studio, self.row = studio, row
        self.source = studio.compressions.source(row)
        self.wanted: str | None = None  # the compression that was chosen
        self.number: int | None = None  # the point that was chosen
        self.by, self.log = "bytes", True
        self.values: dict[str, str] = {}
        self.views = studio.compressions.of(row, studio.feed.snapshot)
        self._seen: object = None
        on = {"select": self._select, "of": self._choose, "by": self._set_by, "log": self._set_log}
        self.head = Fragment(self._head(), "section", on).classes("card sect").props('aria-label="Compression"')
        with ui.element("div").classes("cols side-r sect"):
            self.chart = (
                Fragment(self._chart(), "section", on)
                .classes("card cchart")
                .props('aria-label="Size against accuracy"')
            )
            with ui.element("section").classes("card cform for-members").props('aria-label="Settings"'):
                self._form()
        self.layers = Fragment(self._layers(), "div", on)
        self.points = Fragment(self._points(), "div", on)
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    @property
    def view(self) -> CompressionView | None:
        """The compression that is shown: the chosen one, else the newest that has a folder, else one that waits for its turn."""
        begun = [one for one in self.views if one.run is not None]
        newest = next(iter(begun or self.views), None)
        return next((one for one in begun if one.run == self.wanted), newest)

    # --- what the user does -----------------------------------------------------------------------------------------------------

    def _select(self, number: str) -> None:
        self.number = int(number)
        self._show()

    def _choose(self, run: str) -> None:
        self.wanted, self.number = run, None
        self._show()

    def _set_by(self, by: str) -> None:
        self.by = by if by in BY else "bytes"
        self._show()

    def _set_log(self, _: str) -> None:
        self.log = not self.log
        self._show()

    def _changed(self, values: dict[str, str]) -> None:
        self.values = values
        self.check.show(self._check())

    # --- what is shown ----------------------------------------------------------------------------------------------------------

    def _follow(self, snapshot: Snapshot) -> None:
        self.views = self.studio.compressions.of(self.row, snapshot)
        if self.views != self._seen:
            self._seen = self.views
            self._show()

    def _show(self) -> None:
        self.head.show(self._head())
        self.chart.show(self._chart())
        self.layers.show(self._layers())
        self.points.show(self._points())
        self.check.show(self._check())

    def _render(self, template: str, **values: Any) -> str:
        view = self.view
        point = None if view is None else view.point(self.number)
        return render(template, view=view, point=point, row=self.row, base=self.studio.config.prefix, **values)

    def _head(self) -> str:
        view = self.view
        left = None if view is None else view.seconds_left(time.time())
        point = None if view is None else view.point(self.number)
        tiles = compression_tiles(view, point) if view is not None and point is not None else []
        others = [one for one in self.views if one.run is not None]
        pending = [one for one in self.views if one.run is None and one is not view]
        has_weights = (self.row.folder / "weights" / "best.safetensors").exists()
        return self._render("compress_head.html", left=left, tiles=tiles, others=others, pending=pending, source=self.source, has_weights=has_weights)  # fmt: skip

    def _chart(self) -> str:
        chart = None if self.view is None else compression_chart(self.view, self.by, self.log)
        return self._render("compress_chart.html", chart=chart, by=self.by, log=self.log, axes=BY)

    def _form(self) -> None:
        if self.source is not None and self.source.id != self.row.id:
            Fragment(
                render("compress_settings.html", view=self.view, source=self.source, base=self.studio.config.prefix)
            )
            self.check = Fragment(self._check(), "div").classes("cbody ccheck")
            return
        form = render(
            "compress_form.html",
            row=self.row,
            wide=WIDE,
            fields=FIELDS,
            more=MORE,
            values=self.values,
            lists=LISTS,
            wrong="",
        )
        Fragment(form, on={"changed": self._changed})
        self.check = Fragment(self._check(), "div").classes("cbody ccheck")

    def _check(self) -> str:
        check = check_compression_form(self.values, self.row) if self.source is None else None
        said = "" if self.view is None else said_of_target(self.view)
        return self._render("compress_check.html", check=check, said=said)

    def _layers(self) -> str:
        return self._render("compress_layers.html")

    def _points(self) -> str:
        rows = [] if self.view is None else point_rows(self.view)
        return self._render("compress_points.html", rows=rows)
