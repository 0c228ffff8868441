"""Predictions of a run: a few fixed validation examples after every epoch, and what it predicts for the held-out split."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from nicegui import background_tasks, ui

from ..library.feed import Snapshot
from ..library.run_images import WatchedExample, watched, watched_of
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment, fragment
from ..ui.rendering import render

SHOWN = 6  # epochs to choose from, besides the whole history


async def predictions(studio: Studio, row: RunRow) -> None:
    """The tab: every epoch as a row."""
    found = await asyncio.to_thread(watched, row.folder)
    if not found:
        text = "Predictions of a few validation examples appear after the first epoch."
        if row.epochs:
            text = "No examples are followed here: that needs one class or numbers for each, and a validation split."
        with ui.element("section").classes("card sect"):
            fragment("nothing_yet.html", text=text)
        return
    pictures = await asyncio.to_thread(watched_of, row.folder)
    with ui.element("section").classes("card sect").props('aria-label="Predictions by epoch"'):
        fragment(
            "watched_table.html", epochs=dict(sorted(found.items(), reverse=True)), first=next(iter(found.values())),
            base=_address(studio, row), has_images=pictures is not None, small=pictures is not None and pictures.are_small,
        )  # fmt: skip


async def watched_card(studio: Studio, row: RunRow) -> None:
    """A card with the watched examples, after the last epoch or one that is chosen; nothing if there are none."""
    found = await asyncio.to_thread(watched, row.folder)
    if found or row.status == "running":
        WatchedCard(studio, row, found)


class WatchedCard:
    """Follows the run: after every epoch it shows what is predicted now."""

    def __init__(self, studio: Studio, row: RunRow, found: dict[int, list[WatchedExample]]) -> None:
        self.studio, self.row, self.found = studio, row, found
        self.chosen: int | None = None
        self._version = studio.feed.snapshot.runs_version
        self.card = Fragment(self._html(), "section", on={"epoch": self._choose}).classes("card sect")
        self.card.props('aria-label="Sample predictions"')
        ui.context.client.on_delete(studio.feed.subscribe(self._follow))

    def _html(self) -> str:
        epochs = sorted(self.found)
        pictures = watched_of(self.row.folder)
        epoch = self.chosen if self.chosen in self.found else (epochs[-1] if epochs else None)
        return render(
            "watched.html", epochs=_spread(epochs), epoch=epoch, examples=self.found.get(epoch or 0, []), base=_address(self.studio, self.row),
            has_images=pictures is not None, small=pictures is not None and pictures.are_small,
        )  # fmt: skip

    def _choose(self, epoch: str) -> None:
        self.chosen = int(epoch)
        self.card.show(self._html())

    def _follow(self, snapshot: Snapshot) -> None:
        if snapshot.runs_version != self._version:
            self._version = snapshot.runs_version
            background_tasks.create(self._read(), name="watched examples")

    async def _read(self) -> None:
        self.found = await asyncio.to_thread(watched, self.row.folder)
        self.card.show(await asyncio.to_thread(self._html))


def _spread(epochs: list[int]) -> list[int]:
    """Some epochs, evenly spread, with the first and the last."""
    if len(epochs) <= SHOWN:
        return epochs
    return sorted({epochs[round(i * (len(epochs) - 1) / (SHOWN - 1))] for i in range(SHOWN)})


def _address(studio: Studio, row: RunRow) -> Any:
    return f"{studio.config.prefix}/api/v1/runs/{quote(row.id)}/watched"
