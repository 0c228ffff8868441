"""The images of a dataset: filter, pages, one opened; those that are selected can be removed, relabelled or moved, as a new version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nicegui import ui

from ...data.changes import DatasetChanges
from ...data.label_kinds import label_list, named
from ...data.pixel_summary import as_bytes
from ..library.dataset_images import ImageFilter, ImageRef, OpenedDataset
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.rendering import render

SPLIT_WORDS = {"train": "Train", "validation": "Val", "test": "Test"}
PAGE = 54
TINY = 64  # images with smaller sides are shown with their pixels


class Explorer:
    """The grid with its filter and pages. Changes wait until they are saved as a new version."""

    def __init__(
        self, studio: Studio, opened: OpenedDataset, name: str, version: str, digest: str, *, page: int = PAGE,
        following: str = "", of_class: str = "",
    ) -> None:  # fmt: skip
        self.studio, self.opened, self.name, self.version, self.digest = studio, opened, name, version, digest
        self.following, self.page, self.start = (
            following,
            page,
            0,
        )  # `following`: the name of the next version, if one can be made
        self.filter = ImageFilter(of_class=of_class)
        self.refs, self.total = opened.find(self.filter, 0, page)
        self.selected: set[str] = set()
        self.removed: set[str] = set()
        self.relabelled: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.open_key = ""
        handlers: dict[str, Callable[[Any], Any]] = {
            "filter": self._filter, "split": self._split, "flagged": self._flagged, "page-back": self._page_back,
            "page-on": self._page_on, "select": self._select, "open": self._open,
        }  # fmt: skip
        with ui.element("section").classes("card sect").props('aria-label="Images"'):
            self.grid = Fragment(self._grid(), on=handlers)
        self.pending = Fragment(
            self._pending(),
            on={
                "relabel": self._relabel,
                "move": self._move,
                "remove": self._remove,
                "clear": self._clear,
                "discard": self._discard,
            },
        )
        self.viewer = Fragment(
            self._viewer(),
            on={
                "close": lambda _: self._open(""), "previous": lambda _: self._step(-1), "next": lambda _: self._step(1),
                "relabel-one": self._relabel_one, "remove-one": self._remove_one,
            },
        )  # fmt: skip

    # --- filter and pages -----------------------------------------------------------------------------------------------------

    async def _filter(self, fields: Mapping[str, str]) -> None:
        await self._look(
            ImageFilter(self.filter.split, fields.get("class", ""), fields.get("words", ""), self.filter.flagged)
        )

    async def _split(self, split: str) -> None:
        await self._look(ImageFilter(split, self.filter.of_class, self.filter.words, self.filter.flagged))

    async def _flagged(self, _: str) -> None:
        await self._look(
            ImageFilter(self.filter.split, self.filter.of_class, self.filter.words, not self.filter.flagged)
        )

    async def _page_back(self, _: str) -> None:
        await self._look(self.filter, max(0, self.start - self.page))

    async def _page_on(self, _: str) -> None:
        if self.start + self.page < self.total:
            await self._look(self.filter, self.start + self.page)

    async def _look(self, wanted: ImageFilter, start: int = 0) -> None:
        self.filter, self.start = wanted, start
        self.refs, self.total = await asyncio.to_thread(self.opened.find, wanted, start, self.page)
        self._show()

    # --- changes --------------------------------------------------------------------------------------------------------------

    def _select(self, key: str) -> None:
        self.selected ^= {key}
        self._show()

    def _clear(self, _: str) -> None:
        self.selected = set()
        self._show()

    def _discard(self, _: str) -> None:
        self.removed, self.relabelled, self.moved = set(), {}, {}
        self._show()

    def _remove(self, _: str) -> None:
        self.removed |= self.selected
        self._done()

    def _relabel(self, name: str) -> None:
        if name:
            self.relabelled |= dict.fromkeys(self.selected, name)
            self._done()

    def _move(self, split: str) -> None:
        if split:
            self.moved |= {key: split for key in self.selected if key.split(":")[0] != split}
            self._done()

    def _done(self) -> None:
        self.selected = set()
        self._show()

    def _relabel_one(self, name: str) -> None:
        self.relabelled[self.open_key] = name
        if name == self._written(self._ref(self.open_key)):
            del self.relabelled[self.open_key]
        self._show()

    def _remove_one(self, _: str) -> None:
        self.removed ^= {self.open_key}
        self._show()

    def changes(self) -> DatasetChanges:
        """The changes that wait. What is removed is not changed otherwise."""
        relabel: dict[str, dict[int, str]] = {}
        move: dict[str, dict[int, str]] = {}
        remove: dict[str, list[int]] = {}
        for found, table in ((self.relabelled, relabel), (self.moved, move)):
            for key, value in found.items():
                if key not in self.removed:
                    split, row = key.split(":")
                    table.setdefault(split, {})[int(row)] = value
        for key in self.removed:
            split, row = key.split(":")
            remove.setdefault(split, []).append(int(row))
        return DatasetChanges(remove, relabel, move)

    # --- the opened image -------------------------------------------------------------------------------------------------------

    def _open(self, key: str) -> None:
        self.open_key = key
        self._show()

    async def _step(self, by: int) -> None:
        """The image before or after, on the next page if need be."""
        keys = [_key(ref) for ref in self.refs]
        place = keys.index(self.open_key) + by if self.open_key in keys else 0
        if not 0 <= place < len(keys):
            turned = self.start + by * self.page
            if not 0 <= turned < self.total:
                return
            await self._look(self.filter, turned)
            keys = [_key(ref) for ref in self.refs]
            place = 0 if by > 0 else len(keys) - 1
        self._open(keys[place])

    def _ref(self, key: str) -> ImageRef:
        split, row = key.split(":")
        return self.opened.image(split, int(row))

    def _written(self, ref: ImageRef) -> str:
        """The label of an image as a change writes it."""
        part = self.opened.parts[ref.split]
        (label,) = named(label_list(part.labels[ref.row : ref.row + 1]), self.opened.kind, part.classes)
        return ";".join(f"{one:g}" if isinstance(one, float) else one for one in label)

    # --- HTML -------------------------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        self.grid.show(self._grid())
        self.pending.show(self._pending())
        self.viewer.show(self._viewer())

    @property
    def _common(self) -> dict[str, Any]:
        base = self.studio.config.prefix
        return {
            "images": f"{base}/api/v1/datasets/{self.name}/{self.version}/images", "digest": self.digest, "classes": self.opened.classes,
            "tiny": max(self.opened.train.shape[1:]) <= TINY, "editable": bool(self.following), "kind": self.opened.kind,
            "splits": [(split, SPLIT_WORDS[split]) for split in self.opened.parts],
        }  # fmt: skip

    def _grid(self) -> str:
        flags = sum(map(len, self.opened.flags.values()))
        return render(
            "dataset_explorer.html", filter=self.filter, refs=self.refs, start=self.start, total=self.total, flags=flags,
            selected=self.selected, removed=self.removed, relabelled=self.relabelled, moved=self.moved, **self._common,
        )  # fmt: skip

    def _pending(self) -> str:
        changes = self.changes()
        return render(
            "dataset_pending.html", selected=len(self.selected), summary=changes.summary() if changes else "", next=self.following,
            changes=changes.as_json(), changes_to=f"/datasets/{self.name}/{self.version}/changes", **self._common,
        )  # fmt: skip

    def _viewer(self) -> str:
        ref = self._ref(self.open_key) if self.open_key else None
        mean = label = ""
        if ref is not None:
            pixels = as_bytes(self.opened.parts[ref.split].inputs(np.array([ref.row])))[0]
            mean = ", ".join(f"{channel.mean():.0f}" for channel in pixels)
            label = self.relabelled.get(self.open_key, self._written(ref))
        _, height, width = self.opened.train.shape
        return render(
            "dataset_viewer.html", ref=ref, size=f"{width} × {height}", mean=mean, label=label,
            removed=self.open_key in self.removed, **self._common,
        )  # fmt: skip


def _key(ref: ImageRef) -> str:
    return f"{ref.split}:{ref.row}"
