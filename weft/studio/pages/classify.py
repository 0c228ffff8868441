"""Classify: draw or upload an image, and see what networks make of it."""

from __future__ import annotations

import asyncio
import contextlib

from nicegui import background_tasks, ui

from ...errors import WeftError
from ..library.runs import RunRow
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.frame import frame
from ..ui.rendering import render

AT_FIRST = 2  # networks that are asked before any is chosen


def add(studio: Studio) -> None:
    """Register the page."""

    @ui.page("/classify")
    def classify(runs: str = "") -> None:
        base = studio.config.prefix
        able = [row for row in studio.index.rows() if (row.folder / "weights" / "best.safetensors").exists()]
        chosen = [row for row in able if row.id in runs.split(",")] or able[:AT_FIRST]
        ui.add_head_html(f'<script src="{base}/assets/classify.js" defer></script>')
        for row in chosen:
            background_tasks.create(asyncio.to_thread(_load, studio, row), name=f"load {row.id}")
        with frame(studio, "Classify", "classify"):
            others = [row.id for row in able if row not in chosen]
            Fragment(
                render("classify.html", rows=chosen, others=others, base=base, grey=_takes_grey(chosen)),
                on={
                    "add": lambda run: ui.navigate.to(
                        f"{base}/classify?runs={','.join([*(row.id for row in chosen), run])}"
                    )
                },
            )


def _load(studio: Studio, row: RunRow) -> None:
    """Load a network before the first image comes. An error is shown when it is used."""
    with contextlib.suppress(WeftError):
        studio.networks.get(row.folder)


def _takes_grey(rows: list[RunRow]) -> bool:
    """Whether a drawing of white on black is what the networks know: small gray images."""
    return all(str(row.settings.get("data")) in ("digits", "mnist", "fashion-mnist") for row in rows)
