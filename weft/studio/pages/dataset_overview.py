"""The overview of a dataset: images by class, pixels, what the data doctor says, the first images, versions."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from nicegui import app, ui

from ...data.doctor.report import DoctorReport, load_report
from ...data.pixel_summary import PixelSummary
from ..ui.formats import three_figures
from ..ui.fragment import Fragment, fragment
from ..ui.rendering import render
from .dataset_explorer import SPLIT_WORDS, Explorer
from .dataset_view import DatasetView

COLOURS = {"train": "s1", "validation": "s2", "test": "s3"}
CHANNEL_COLOURS = {1: ("ink-2",), 3: ("s8", "s3", "s1")}
MOST_CLASSES, MOST_TARGETS = 20, 4


async def overview(view: DatasetView) -> None:
    with ui.element("div").classes("cols sect " + ("d3" if has_doctor(view) else "d2")):
        with ui.element("section").classes("card").props('aria-label="Images by class"'):
            fragment("dataset_classes.html", **_classes(view))
        with ui.element("section").classes("card").props('aria-label="Pixels"'):
            known = view.opened.__dict__.get("pixels")  # computed before: shown at once
            pixels = Fragment(render("dataset_pixels.html", **_pixels(view, known)))
        if has_doctor(view):
            with ui.element("section").classes("card").props('aria-label="Data doctor"'):
                fragment("dataset_doctor_card.html", report=doctor_report(view), address=doctor_address(view))
    explorer(view, 18)
    if view.row is not None:
        versions(view)
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
        "title": "Images by class" if view.opened.classes else "Numbers to predict", "lines": lines, "targets": _targets(view), "most": max([*names.values(), 1]), "legend": legend,
        "hidden": max(0, len(ordered) - MOST_CLASSES), "address": view.address,
    }  # fmt: skip


def _targets(view: DatasetView) -> list[dict[str, Any]]:
    """The distribution of the numbers of a regression over training."""
    if view.opened.kind != "numbers":
        return []
    labels = view.opened.train.labels
    columns = labels.reshape(len(labels), -1).T[:MOST_TARGETS]
    return [_distribution(column.astype(np.float64)) for column in columns]


def _distribution(values: np.ndarray) -> dict[str, Any]:
    bins, edges = np.histogram(values, 40)
    return {
        "bins": (bins / max(1, bins.max())).tolist(), "low": f"{edges[0]:.4g}", "high": f"{edges[-1]:.4g}",
        "mean": three_figures(float(values.mean())), "std": three_figures(float(values.std())),
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


def explorer(view: DatasetView, page: int = 54) -> None:
    Explorer(
        view.studio, view.opened, view.name, view.version_name, view.digest, page=page, following=view.following if view.may_change else "",
        of_class=view.of_class if view.of_class in view.opened.classes else "",
    )  # fmt: skip


def versions(view: DatasetView) -> None:
    assert view.row is not None
    with ui.element("section").classes("card sect").props('aria-label="Versions"'):
        fragment(
            "dataset_versions.html", versions=view.row.versions, version=view.version, name=view.name, base=view.studio.config.prefix
        )  # fmt: skip


# --- the data doctor: its page is another, its results are shown here ---------------------------------------------------------------


def has_doctor(view: DatasetView) -> bool:
    """Whether the studio has the page of the data doctor, and the dataset can be examined."""
    paths = {getattr(route, "path", "") for route in app.routes}
    return bool(view.following) and view.version is not None and "/datasets/{name}/doctor" in paths


def doctor_address(view: DatasetView) -> str:
    return f"{view.studio.config.prefix}/datasets/{view.name}/doctor?version={view.version_name}"


def doctor_report(view: DatasetView) -> DoctorReport | None:
    """The last report of this version."""
    return None if view.version is None else load_report(view.version.folder, str(view.version.about["digest"]))
