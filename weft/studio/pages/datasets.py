"""Datasets: all of them as a table, those that are being made with their progress, and the known ones."""

from __future__ import annotations

import asyncio
from typing import Any

from nicegui import ui

from ...data.catalogue import is_available, known_names
from ...errors import WeftError
from ...records import dataclass
from ..library.dataset_images import OpenedDataset
from ..library.datasets import DatasetJob, DatasetRow
from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render

LABEL_WORDS = {"class": "", "classes": "several classes", "numbers": "regression"}


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/datasets")
    async def datasets() -> None:
        known = await asyncio.to_thread(_known, studio)
        base = studio.config.prefix
        header = ("header datasets", lambda snapshot: render("datasets_header.html", base=base))
        with frame(studio, "Datasets", "datasets", live_header=header):
            DatasetTable(studio, known)


@dataclass(frozen=True)
class DatasetLine:
    """A line of the table."""

    name: str
    images: int
    classes: int
    size: str
    nbytes: int
    versions: int
    runs: int
    created: float | None
    words: str
    labels: str = ""
    job: DatasetJob | None = None
    warning: str = ""


def _line(studio: Studio, row: DatasetRow) -> DatasetLine:
    newest, runs = row.newest, row.used_by(studio.index.rows())
    if newest is None:
        created = row.folder.stat().st_mtime if row.folder.exists() else 1.0
        return DatasetLine(
            row.name, 0, 0, "", 0, 0, len(runs), created, row.name, job=row.jobs[-1], warning=deletion_warning(row, [])
        )
    return DatasetLine(
        row.name, newest.images, len(newest.classes), newest.size, sum(one.nbytes for one in row.versions),
        len(row.versions), len(runs), newest.created, f"{row.name} {' '.join(newest.classes)}", LABEL_WORDS[newest.labels],
        None, deletion_warning(row, [run.name for run in runs]),
    )  # fmt: skip


def deletion_warning(row: DatasetRow, runs: list[str]) -> str:
    """What is said before a dataset is deleted."""
    text = f"Delete {row.name} with {len(row.versions)} version{'' if len(row.versions) == 1 else 's'}? This cannot be undone."
    if runs:
        names = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
        text += f" {len(runs)} run{'' if len(runs) == 1 else 's'} learned from it and cannot be resumed or evaluated without it: {names}."
    return text


def _known(studio: Studio) -> list[DatasetLine]:
    """The known datasets that are on this machine."""
    found = []
    for name in known_names():
        if is_available(name):
            try:
                found.append(_known_line(name, studio.datasets.images.known(name)))
            except WeftError:  # its files are damaged: its page says so
                continue
    return found


def _known_line(name: str, opened: OpenedDataset) -> DatasetLine:
    images = sum(len(part) for part in opened.parts.values())
    _, height, width = opened.train.shape
    return DatasetLine(
        name, images, len(opened.classes), f"{width} × {height}", 0, 1, 0, None, f"{name} {' '.join(opened.classes)}"
    )


class DatasetTable:
    """The table with search and sort."""

    def __init__(self, studio: Studio, known: list[DatasetLine]) -> None:
        self.studio, self.known = studio, known
        self.words, self.sort, self.descending = "", "created", True
        self._seen: Any = None
        with ui.element("section").classes("card").props('aria-label="Datasets"'):
            Fragment(render("datasets_filter.html"), on={"filter": self._filter})
            self.table = Fragment(self._html(), on={"sort": self._sort_by})
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _filter(self, fields: dict[str, Any]) -> None:
        self.words = fields["words"].strip().lower()
        self.table.show(self._html())

    def _sort_by(self, key: str) -> None:
        self.descending = not self.descending if key == self.sort else key != "name"
        self.sort = key
        self.table.show(self._html())

    def _follow(self, snapshot: Snapshot) -> None:
        seen = snapshot.datasets, snapshot.runs_version
        if seen != self._seen:
            self._seen = seen
            self.table.show(self._html())

    def _html(self) -> str:
        data = {run.settings.get("data") for run in self.studio.index.rows()}
        rows = self.studio.datasets.index.rows()
        lines = [_line(self.studio, row) for row in rows] + [self._with_runs(one, data) for one in self.known]
        shown = [one for one in lines if all(word in one.words.lower() for word in self.words.split())]
        shown.sort(
            key=lambda one: (getattr(one, self.sort) or 0) if self.sort != "name" else one.name.lower(),
            reverse=self.descending,
        )
        return render(
            "datasets_table.html", rows=shown, total=len(lines), sort=self.sort, descending=self.descending,
            base=self.studio.config.prefix,
        )  # fmt: skip

    def _with_runs(self, one: DatasetLine, data: set[Any]) -> DatasetLine:
        if one.name not in data:
            return one
        runs = sum(run.settings.get("data") == one.name for run in self.studio.index.rows())
        return DatasetLine(**{**vars(one), "runs": runs})
