"""A dataset: facts, images by class, pixels, the images themselves, versions, runs; progress while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import HTTPException
from nicegui import ui

from ...data.catalogue import is_available, known_names
from ...data.pixel_summary import PixelSummary
from ...data.resize import WAYS
from ..library.dataset_images import OpenedDataset, failures
from ..library.datasets import DatasetRow, VersionRow
from ..library.feed import Snapshot
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment, fragment
from ..ui.frame import frame
from ..ui.rendering import render
from .dataset_explorer import SPLIT_WORDS, Explorer
from .datasets import deletion_warning
from .new_dataset import add_scripts

COLOURS = {"train": "s1", "validation": "s2", "test": "s3"}
CHANNEL_COLOURS = {1: ("ink-2",), 3: ("s8", "s3", "s1")}
MOST_CLASSES, MOST_FAILED = 20, 500
KNOWN = "known"  # the only version of a known dataset, in addresses


@dataclass(frozen=True)
class DatasetView:
    """A dataset as its page shows it: a version of one that was created, or a known one."""

    studio: Studio
    name: str
    opened: OpenedDataset
    row: DatasetRow | None = None  # none for a known dataset
    version: VersionRow | None = None
    of_class: str = ""

    @property
    def version_name(self) -> str:
        return KNOWN if self.version is None else self.version.name

    @property
    def digest(self) -> str:
        return "" if self.version is None else self.version.digest

    @property
    def address(self) -> str:
        """The address of the page, ready for another parameter."""
        version = f"version={self.version.name}&" if self.version is not None else ""
        return f"{self.studio.config.prefix}/datasets/{self.name}?{version}"

    @property
    def following(self) -> str:
        """The name of the next version; empty where none can be made."""
        return next_version(self.row, self.version)

    @property
    def data(self) -> str:
        """What `weft train data=` takes."""
        return self.name if self.version is None else str(self.version.folder)

    def runs(self) -> list[tuple[RunRow, str]]:
        """The runs that learned from it, with the version."""
        rows = self.studio.index.rows()
        if self.row is None:
            return [(run, "") for run in rows if run.settings.get("data") == self.name]
        named = {str(one.folder): one.name for one in self.row.versions}
        return [(run, named.get(str(run.settings.get("data")), "newest")) for run in self.row.used_by(rows)]


@dataclass(frozen=True)
class DatasetTab:
    """A tab of the page. `count` is what stands beside its title; a tab without one is always there."""

    key: str
    title: str
    show: Callable[[DatasetView], Awaitable[None]]
    count: Callable[[DatasetView], int | None] = lambda view: None
    is_shown: Callable[[DatasetView], bool] = lambda view: True


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/datasets/{name}")
    async def dataset(name: str, version: str = "", tab: str = "overview", of_class: str = "") -> None:
        wanted = ui.context.client.request.query_params.get("class", of_class)
        row = studio.datasets.index.get(name)
        if row is None and (name not in known_names() or not is_available(name)):
            raise HTTPException(404, f"There is no dataset {name}.")
        found = None if row is None else row.version(version)
        if row is not None and row.versions and found is None:
            raise HTTPException(404, f"There is no version {version} of {name}.")
        add_scripts(studio)
        view = None
        if row is None or (found is not None and not found.problem):
            opened = await asyncio.to_thread(studio.datasets.opened, name, version or None)
            view = DatasetView(studio, name, opened, row, found, wanted)
        header = (f"dataset header {name} {version}", lambda snapshot: _header(studio, name, version))
        with frame(studio, name, "datasets", live_header=header):
            if row is not None:
                studio.live.add(f"dataset jobs {name}", lambda snapshot: _jobs(studio, snapshot, name))
                _follow(studio, name)
            if view is not None:
                await _content(view, tab)
            elif found is not None:
                fragment("dataset_problem.html", "section", "card sect", problem=found.problem)


def _follow(studio: Studio, name: str) -> None:
    """Open the page again when a version has appeared."""
    client, row = ui.context.client, studio.datasets.index.get(name)
    before = len(row.versions) if row is not None else 0

    def look(snapshot: Snapshot) -> None:
        nonlocal before
        now = studio.datasets.index.get(name)
        if now is not None and len(now.versions) > before:
            before = len(now.versions)
            with client:
                ui.navigate.to(f"{studio.config.prefix}/datasets/{name}")

    client.on_delete(studio.feed.subscribe(look))


def _header(studio: Studio, name: str, version: str) -> str:
    """The header, from the index alone: all pages that show this version share it."""
    row = studio.datasets.index.get(name)
    found = None if row is None else row.version(version)
    warning = "" if row is None else deletion_warning(row, [run.name for run in row.used_by(studio.index.rows())])
    return render(
        "dataset_header.html", name=name, row=row, version=found, base=studio.config.prefix, warning=warning,
        editable=bool(next_version(row, found)), data=name if found is None else str(found.folder),
        address=f"{studio.config.prefix}/datasets/{name}?" + ("" if found is None else f"version={found.name}&"),
    )  # fmt: skip


def next_version(row: DatasetRow | None, version: VersionRow | None) -> str:
    """The name of the version that changes would make; empty where none can be made."""
    if row is None or version is None or version.problem or version.labels != "class" or version.folder == row.folder:
        return ""
    return f"v{1 + max(int(one.name[1:]) for one in row.versions)}"


def _jobs(studio: Studio, snapshot: Snapshot, name: str) -> str:
    row = next((one for one in snapshot.datasets if one.name == name), None)
    return render("dataset_jobs.html", jobs=row.jobs if row is not None else ())


async def _content(view: DatasetView, tab: str) -> None:
    with ui.element("section").classes("card").props('aria-label="Facts"'):
        fragment("dataset_facts.html", **_facts(view))
    tabs = [one for one in TABS if one.is_shown(view) or one.key == tab]
    shown = [(one.key, one.title, None if (n := one.count(view)) is None else f"{n:,}") for one in tabs]
    address = view.address.rstrip("&?")
    fragment(
        "dataset_tabs.html", tabs=shown, tab=tab, address=address + ("&" if "?" in address else "?"), first=address
    )
    chosen = next((one for one in tabs if one.key == tab), tabs[0])
    await chosen.show(view)


def _facts(view: DatasetView) -> dict[str, Any]:
    parts = {split: len(part) for split, part in view.opened.parts.items()}
    total = sum(parts.values())
    channels, height, width = view.opened.train.shape
    about = {} if view.version is None else view.version.about
    settings = about.get("settings", {})
    kind = view.opened.kind
    numbers = int(np.prod(view.opened.train.labels.shape[1:]))
    return {
        "images": total, "failed": 0 if view.version is None else view.version.failed, "labels": kind,
        "label_count": numbers if kind == "numbers" else len(view.opened.classes), "address": view.address,
        "shares": [f"{100 * n / max(1, total):.0f}" for n in parts.values()],
        "splits": [SPLIT_WORDS[split].lower() for split in parts], "by_class": isinstance(settings.get("validation"), float),
        "width": width, "height": height, "colour": "RGB" if channels == 3 else "Grey",
        "way": str(settings.get("resize", "")).replace("_", " ") if settings.get("resize") in WAYS else "",
        "nbytes": 0 if view.version is None else view.version.nbytes, "store": _store(about, settings),
    }  # fmt: skip


def _store(about: Any, settings: Any) -> str:
    if not about:
        return "known set"
    if about["store"] == "arrays":
        return "plain arrays"
    return "LMDB, JPEG 90" if settings.get("encoding") == "jpeg" else "LMDB, PNG"


# --- tabs ---------------------------------------------------------------------------------------------------------------------


async def _overview(view: DatasetView) -> None:
    with ui.element("div").classes("cols sect " + ("d3" if CARDS else "d2")):
        with ui.element("section").classes("card").props('aria-label="Images by class"'):
            fragment("dataset_classes.html", **_classes(view))
        with ui.element("section").classes("card").props('aria-label="Pixels"'):
            known = view.opened.__dict__.get("pixels")  # computed before: shown at once
            pixels = Fragment(render("dataset_pixels.html", **_pixels(view, known)))
        for card in CARDS:
            await card(view)
    await _images(view, 18)
    if view.row is not None:
        _versions(view)
    if known is None:
        ui.timer(0.05, lambda: _fill(view, pixels), once=True)


async def _fill(view: DatasetView, shown: Fragment) -> None:
    found = await asyncio.to_thread(lambda: view.opened.pixels)
    shown.show(render("dataset_pixels.html", **_pixels(view, found)))


def _classes(view: DatasetView) -> dict[str, Any]:
    counts = view.opened.counts()
    names = {name: sum(part[name] for part in counts.values()) for name in view.opened.classes}
    ordered = sorted(names, key=lambda name: (-names[name], name))
    lines = [
        (
            name,
            [(SPLIT_WORDS[split].lower(), part[name], COLOURS[split]) for split, part in counts.items()],
            names[name],
        )
        for name in ordered[:MOST_CLASSES]
    ]
    legend = [(SPLIT_WORDS[split].lower(), len(part), COLOURS[split]) for split, part in view.opened.parts.items()]
    return {
        "title": "Images by class", "lines": lines, "most": max([*names.values(), 1]), "legend": legend,
        "hidden": max(0, len(ordered) - MOST_CLASSES), "address": view.address,
    }  # fmt: skip


def _pixels(view: DatasetView, found: PixelSummary | None) -> dict[str, Any]:
    train = view.opened.train
    colours = CHANNEL_COLOURS.get(train.shape[0], ("ink-2",) * train.shape[0])
    base = f"{view.studio.config.prefix}/api/v1/datasets/{view.name}/{view.version_name}"
    return {
        "means": _numbers(train.mean), "deviations": _numbers(train.std), "channels": "RGB" if train.shape[0] == 3 else "grey",
        "histogram": [] if found is None else list(zip(_curves(found.histogram), colours, strict=True)),
        "mean": f"{base}/mean?d={view.digest}", "looked_at": 0 if found is None else found.images,
        "checksum": f"{view.digest[:4]} {view.digest[4:8]}" if view.digest else "",
    }  # fmt: skip


def _numbers(values: Any) -> str:
    return ", ".join(f"{255 * value:.0f}" for value in values) if values else "–"


def _curves(histogram: np.ndarray) -> list[str]:
    """A line for each channel in a square of 1000 by 1000: 64 bins, smoothed a little."""
    bins = histogram.reshape(len(histogram), 64, 4).sum(axis=2).astype(float)
    smooth = np.stack([np.convolve(row, [0.25, 0.5, 0.25], "same") for row in bins])
    top = np.percentile(smooth, 98) or smooth.max() or 1.0  # black borders must not flatten the rest
    rows = np.clip(1000 * (1 - 0.95 * smooth / top), 0, 1000).round().astype(int)
    return ["M" + "L".join(f"{round(1000 * i / 63)} {y}" for i, y in enumerate(row)) for row in rows]


async def _images(view: DatasetView, page: int = 54) -> None:
    Explorer(
        view.studio, view.opened, view.name, view.version_name, view.digest, page=page, following=view.following,
        of_class=view.of_class if view.of_class in view.opened.classes else "",
    )  # fmt: skip


def _versions(view: DatasetView) -> None:
    assert view.row is not None
    with ui.element("section").classes("card sect").props('aria-label="Versions"'):
        fragment(
            "dataset_versions.html", versions=view.row.versions, version=view.version, name=view.name, base=view.studio.config.prefix
        )  # fmt: skip


async def _versions_tab(view: DatasetView) -> None:
    _versions(view)


async def _rename(view: DatasetView) -> None:
    _card(
        view,
        "dataset_rename.html",
        named=[(name, sum(part[name] for part in view.opened.counts().values())) for name in view.opened.classes],
    )


async def _add(view: DatasetView) -> None:
    _card(view, "dataset_add.html", roots=f"{view.studio.paths.roots[0]}/")


async def _runs(view: DatasetView) -> None:
    _card(view, "dataset_runs.html", rows=view.runs(), train=f"/train?data={view.data}")


async def _failed(view: DatasetView) -> None:
    assert view.version is not None
    rows = await asyncio.to_thread(failures, view.version.folder)
    _card(view, "dataset_failed.html", rows=rows[:MOST_FAILED], total=len(rows))


def _card(view: DatasetView, template: str, **values: Any) -> None:
    with ui.element("section").classes("card sect"):
        fragment(
            template, name=view.name, version=view.version, next=view.following, address=view.address,
            base=view.studio.config.prefix, **values,
        )  # fmt: skip


def _image_count(view: DatasetView) -> int:
    return sum(map(len, view.opened.parts.values()))


def _is_editable(view: DatasetView) -> bool:
    return bool(view.following)


# Tabs in their order, and further cards beside the first two of the overview: other pages may add theirs.
TABS = [
    DatasetTab("overview", "Overview", _overview),
    DatasetTab("images", "Images", _images, _image_count),
    DatasetTab("versions", "Versions", _versions_tab, lambda view: len(view.row.versions) if view.row else None, lambda view: view.row is not None),
    DatasetTab("classes", "Classes", _rename, lambda view: len(view.opened.classes), _is_editable),
    DatasetTab("runs", "Runs", _runs, lambda view: len(view.runs())),
    DatasetTab("failed", "Left out", _failed, lambda view: len(failures(view.version.folder)) if view.version else None, lambda view: view.version is not None),
    DatasetTab("add", "Add images", _add, is_shown=_is_editable),
]  # fmt: skip
CARDS: list[Callable[[DatasetView], Awaitable[None]]] = []
