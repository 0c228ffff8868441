"""A dataset: facts, images by class, pixels, the images themselves, versions, runs; progress while it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from fastapi import HTTPException
from nicegui import ui

from ...data.catalogue import is_available, known_names
from ...data.resize import WAYS
from ...records import dataclass
from ..access import current_user
from ..library.dataset_images import OpenedDataset, failures
from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.fragment import fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from .dataset_explorer import SPLIT_WORDS
from .dataset_overview import doctor_address, doctor_report, explorer, has_doctor, overview, versions
from .dataset_view import DatasetView, next_version
from .datasets import deletion_warning
from .new_dataset import add_scripts

MOST_FAILED = 500  # files that are listed


@dataclass(frozen=True)
class DatasetTab:
    """A tab of the page. `count` is what stands beside its title; a tab without one is always there."""

    key: str
    title: str
    show: Callable[[DatasetView], Awaitable[None]]
    count: Callable[[DatasetView], int | None] = lambda view: None
    is_shown: Callable[[DatasetView], bool] = lambda view: True
    page: Callable[[DatasetView], str] | None = None  # the address of a page of its own


def add(studio: Studio) -> None:
    """Register the page."""

    @studio_page("/datasets/{name}")
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
            opened = await asyncio.to_thread(_opened, studio, name, version)
            may_change = current_user(ui.context.client.request).may("member")
            view = DatasetView(studio, name, opened, row, found, wanted, may_change)
        header = (f"dataset header {name} {version}", lambda snapshot: _header(studio, name, version))
        with frame(studio, name, "datasets", live_header=header):
            if row is not None:
                studio.live.add(f"dataset jobs {name}", lambda snapshot: _jobs(studio, snapshot, name))
                _follow(studio, name)
            if view is not None:
                await _content(view, tab)
            elif found is not None:
                fragment("dataset_problem.html", "section", "card sect", problem=found.problem)


def _opened(studio: Studio, name: str, version: str) -> OpenedDataset:
    """The dataset with the names of its images, which are read here and not in the event loop."""
    found = studio.datasets.opened(name, version or None)
    _ = found.names
    return found


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
        "dataset_header.html", name=name, row=row, known=name in known_names(), version=found, base=studio.config.prefix, warning=warning,
        editable=bool(next_version(row, found)), data=name if found is None else str(found.folder),
        address=f"{studio.config.prefix}/datasets/{name}?" + ("" if found is None else f"version={found.name}&"),
    )  # fmt: skip


def _jobs(studio: Studio, snapshot: Snapshot, name: str) -> str:
    row = next((one for one in snapshot.datasets if one.name == name), None)
    return render("dataset_jobs.html", jobs=row.jobs if row is not None else ())


async def _content(view: DatasetView, tab: str) -> None:
    with ui.element("section").classes("card").props('aria-label="Facts"'):
        fragment("dataset_facts.html", **_facts(view))
    tabs = [one for one in TABS if one.is_shown(view) or (one.key == tab and view.may_change)]
    shown = [
        (one.key, one.title, None if (n := one.count(view)) is None else f"{n:,}", one.page(view) if one.page else "")
        for one in tabs
    ]
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


async def _images(view: DatasetView) -> None:
    explorer(view)


async def _versions_tab(view: DatasetView) -> None:
    versions(view)


async def _nothing(view: DatasetView) -> None:
    """A tab with a page of its own."""


def _warnings(view: DatasetView) -> int | None:
    report = doctor_report(view)
    return None if report is None else report.warnings


async def _rename(view: DatasetView) -> None:
    _card(
        view,
        "dataset_rename.html",
        named=[(name, sum(part[name] for part in view.opened.counts().values())) for name in view.opened.classes],
    )


async def _add(view: DatasetView) -> None:
    _card(view, "dataset_add.html", roots=f"{view.studio.paths.roots[0]}/", kind=view.opened.kind)


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


# Tabs in their order; other pages may add theirs.
TABS = [
    DatasetTab("overview", "Overview", overview),
    DatasetTab("images", "Images", _images, _image_count),
    DatasetTab("doctor", "Data doctor", _nothing, _warnings, has_doctor, doctor_address),
    DatasetTab("versions", "Versions", _versions_tab, lambda view: len(view.row.versions) if view.row else None, lambda view: view.row is not None),
    DatasetTab("classes", "Classes", _rename, lambda view: len(view.opened.classes), lambda view: view.is_editable and bool(view.opened.classes)),
    DatasetTab("runs", "Runs", _runs, lambda view: len(view.runs())),
    DatasetTab("failed", "Left out", _failed, lambda view: view.version.left_out if view.version else None, lambda view: view.version is not None),
    DatasetTab("add", "Add images", _add, is_shown=lambda view: view.is_editable),
]  # fmt: skip
