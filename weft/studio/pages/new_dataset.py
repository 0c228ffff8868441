"""New dataset: the form, with what the source holds and one sample under every resize mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import ui

from ...data.catalogue import known_names
from ...errors import WeftError
from ...jobs.schema import sizes
from ..library.dataset_form import DEFAULTS, SOURCES, DatasetFormCheck, usual_conversion
from ..ui.context import Studio
from ..ui.formats import size as size_text
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render

MODES = (
    ("crop", "Crop", "Fills the square, loses the sides"),
    ("squash", "Squash", "Keeps all, changes the shape"),
    ("fill", "Fill", "Keeps all, adds borders"),
    ("half_crop_half_fill", "Half crop, half fill", "A little of both"),
)
SCRIPTS = ("path_field.js", "upload.js", "datasets.js")
_PREVIEW = 224  # pixels of a side at most


def add_scripts(studio: Studio) -> None:
    """The scripts of path fields, uploads and image grids."""
    for script in SCRIPTS:
        ui.add_head_html(f'<script src="{studio.config.prefix}/assets/{script}" defer></script>')


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/datasets/new")
    async def new_dataset(source: str = "", kind: str = "folder") -> None:
        add_scripts(studio)
        base = studio.config.prefix
        header = ("header new dataset", lambda snapshot: render("new_dataset_header.html", base=base))
        with frame(studio, "New dataset", "datasets", live_header=header):
            form = NewDatasetForm(studio, {"source": source, "kind": kind if kind in SOURCES else "folder"})
            await form.look()
            await form.suggest()


class NewDatasetForm:
    """The form and the panel beside it. Sources are looked at in threads; the last change wins."""

    def __init__(self, studio: Studio, values: dict[str, str]) -> None:
        self.studio, self.values = studio, {**DEFAULTS, **values}
        self.check, self._asked = DatasetFormCheck(), 0
        self._suggested = {"name": "", **usual_conversion(None)}
        with ui.element("div").classes("cols side-r"):
            handlers: dict[str, Callable[[Any], Any]] = {
                "changed": self._changed, "kind": self._choose_kind, "split": self._choose_split
            }  # fmt: skip
            self.form = Fragment(self._form(), on=handlers)
            with ui.element("aside").props('aria-label="Preview"'), ui.element("div").classes("stay"):
                self.panel = Fragment(self._panel()).props('aria-live="polite"')

    async def look(self) -> None:
        """Check the form and show what was found, unless it has changed meanwhile."""
        self._asked += 1
        mine, values = self._asked, dict(self.values)
        found = await asyncio.to_thread(self.studio.datasets.forms.check, values)
        if mine == self._asked:
            self.check = found
            self.form.show(self._form())
            self.panel.show(self._panel())

    async def _changed(self, values: dict[str, str]) -> None:
        self.values = {**self.values, **values}
        await self.look()
        await self.suggest()

    async def suggest(self) -> None:
        """Name, size and colour that follow from the source, as long as nobody chose others."""
        if self.check.scan is None:
            return
        found = {"name": self.studio.datasets.forms.suggested_name(self.values), **usual_conversion(self.check.scan)}
        changed = False
        for name, text in found.items():
            if not text or self.values[name] not in ("", self._suggested[name]):
                continue
            self._suggested[name] = text
            if text != self.values[name]:
                self.values[name], changed = text, True
                self.form.run_method("set_field", name, text)
        if changed:
            await self.look()

    async def _choose_kind(self, kind: str) -> None:
        self.values |= {"kind": kind, "source": ""}
        self.check = DatasetFormCheck()
        self.form.show(self._form())
        await self.look()
        await self.suggest()

    async def _choose_split(self, split: str) -> None:
        self.values["split"] = split
        await self.look()

    def _form(self) -> str:
        check = self.check
        return render(
            "new_dataset_form.html", values=self.values, errors=check.errors, sources=SOURCES, modes=MODES, scan=check.scan,
            known=[(name, name) for name in known_names()], roots=f"{self.studio.paths.roots[0]}/", sample=check.sample,
            preview_size=_preview_size(self.values["size"]), disk=_disk(check), base=self.studio.config.prefix,
        )  # fmt: skip

    def _panel(self) -> str:
        return render("new_dataset_panel.html", check=self.check, busy=False)


def _preview_size(text: str) -> str:
    """The size of the preview: as asked for, not larger than what is shown."""
    try:
        height, width = sizes(text)
    except (ValueError, WeftError):
        height = width = 128
    scale = min(1.0, _PREVIEW / max(height, width))
    return f"{max(1, round(height * scale))}x{max(1, round(width * scale))}"


def _disk(check: DatasetFormCheck) -> str:
    """The forecast of the size on disk, and what other stores would take."""
    if check.forecast is None:
        return ""
    names = {"jpeg": "JPEG", "png": "PNG", "arrays": "arrays"}
    others = ", ".join(f"{names[name]} {size_text(nbytes)}" for name, nbytes in sorted(check.forecast.others.items()))
    return f"{size_text(check.forecast.nbytes)}; {others}"
