"""One batch of predictions: how good they are, and the images with what was predicted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from fastapi import HTTPException
from nicegui import background_tasks, ui

from ..library.batches import ORDERS, SHOWN, PredictionBatch, rows_of, selected
from ..library.feed import Snapshot
from ..ui.context import Studio
from ..ui.fragment import Fragment
from ..ui.frame import frame, studio_page
from ..ui.rendering import render
from .classify import thumbs

PAGE = 60  # images on a page
MATRIX = 20  # classes; above, the most frequent confusions are listed
LEVELS = 8  # steps of the scale of colours
WORST = 25


def add(studio: Studio) -> None:
    """Register the page."""
    base = studio.config.prefix

    @studio_page("/classify/batches/{number}")
    async def batch_page(
        number: int, show: str = "all", order: str = "file", true: str = "", predicted: str = "", page: int = 1
    ) -> None:
        batch = await asyncio.to_thread(studio.batches.get, number)
        if batch is None:
            raise HTTPException(404, f"There are no predictions {number}.")
        head: list[PredictionBatch] = [batch]
        header = lambda snapshot: render("batch_header.html", batch=head[0], base=base)  # noqa: E731
        with frame(studio, f"Batch {number}", "classify", (f"batch {number} {id(head)}", header)):
            metrics = Fragment(render("batch_metrics.html", batch=batch))
            asked = {"show": show, "order": order, "true": true, "predicted": predicted, "page": page}
            Fragment(await asyncio.to_thread(_images, batch, asked, base))
            if batch.results.get("class_accuracy"):
                Fragment(_confusion(batch, base)).classes("cols c2 sect")
            if not batch.is_done:
                _follow(studio, head, metrics)


def _follow(studio: Studio, head: list[PredictionBatch], metrics: Fragment) -> None:
    """Show the progress, and the page anew at the end."""

    async def reload() -> None:
        found = await asyncio.to_thread(studio.batches.get, head[0].number)
        if found is not None and not head[0].is_done:
            head[0] = found
            metrics.show(render("batch_metrics.html", batch=found))
            if found.is_done:
                metrics.client.run_javascript("location.reload()")

    def follow(snapshot: Snapshot) -> None:
        background_tasks.create_lazy(reload(), name=f"batch {id(metrics)}")

    ui.context.client.on_delete(studio.feed.subscribe(follow))


def _images(batch: PredictionBatch, asked: Mapping[str, Any], base: str) -> str:
    """The images that are asked for, with links to all other ways to ask."""
    address = f"{base}/classify/batches/{batch.number}"
    rows = selected(rows_of(batch), asked["show"], asked["order"], asked["predicted"], asked["true"])
    pages = max(1, math.ceil(len(rows) / PAGE))
    page = min(max(1, asked["page"]), pages)

    def link(**change: Any) -> str:
        words = {
            name: value for name, value in {**asked, "page": 1, **change}.items() if value not in ("", "all", "file", 1)
        }
        return f"{address}?{urlencode(words)}" if words else address

    links = {
        "show": {key: link(show=key) for key in SHOWN}, "order": {key: link(order=key) for key in ORDERS},
        "plain": link(true="", predicted=""), "before": link(page=page - 1), "after": link(page=page + 1),
    }  # fmt: skip
    shown = [
        ("all", "All"),
        ("wrong", f"Mistakes {batch.mistakes:,}"),
        ("failed", f"Failed {batch.results.get('failed', 0):,}"),
    ]
    orders = [("file", "By file"), ("confident", "Most confident"), ("unsure", "Least confident")]
    return render(
        "batch_images.html", total=len(rows), page=page, pages=pages, links=links, shown=shown, orders=orders, show=asked["show"],
        order=asked["order"], label=asked["true"], predicted=asked["predicted"],
        thumbs=thumbs(batch, rows[PAGE * (page - 1) : PAGE * page], base),
    )  # fmt: skip


def _confusion(batch: PredictionBatch, base: str) -> str:
    results = batch.results
    classes = list(results["classes"])
    counts = {(true, predicted): n for true, predicted, n in results["confusions"]}
    worst = sorted(((t, p, n) for (t, p), n in counts.items() if t != p), key=lambda one: -one[2])[:WORST]
    lines = []
    if len(classes) <= MATRIX:
        lines = [
            {"name": true, "cells": [_cell(p, counts.get((true, p), 0), results["class_images"].get(true, 0)) for p in classes]}
            for true in classes
        ]  # fmt: skip
    address = f"{base}/classify/batches/{batch.number}"
    return render("batch_confusion.html", names=classes, lines=lines, worst=worst, results=results, address=address)


def _cell(name: str, count: int, total: int) -> dict[str, Any]:
    level = 0 if not count else min(LEVELS - 1, 1 + math.floor(count / total * (LEVELS - 1)))
    return {"name": name, "count": count, "level": level}
