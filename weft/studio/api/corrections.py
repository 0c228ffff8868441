"""Corrections: images that a network got wrong are added to its dataset under their right class, as a new version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request

from ...data.changes import DatasetChanges
from ...errors import UserError
from ..library.datasets import VersionRow
from ..ui.context import Studio
from .classify import BODY, sent_images
from .datasets import add_version

FOLDER = "corrected images"  # of an upload: the version is told to add it


def router(studio: Studio) -> APIRouter:
    """The route below /datasets."""
    routes, one_at_a_time = APIRouter(prefix="/datasets", tags=["datasets"]), asyncio.Lock()

    @routes.post("/{name}/corrections", openapi_extra=BODY)
    async def correct(
        request: Request, name: str, label: Annotated[str, Query(description="the right class of the images")]
    ) -> dict[str, Any]:
        """Add images to the newest version of a dataset under their right class: a new version. They are sent as for classify."""
        images = await sent_images(studio, request)
        async with one_at_a_time:
            await asyncio.to_thread(studio.datasets.index.refresh)
            version = _newest(studio, name, label)
            upload = studio.datasets.uploads.new()
            for number, (_, content) in enumerate(images):
                await studio.datasets.uploads.add_file(
                    upload, f"{FOLDER}/{label}/{upload}-{number}.png", _chunks(content)
                )
            changes = DatasetChanges(add=str(studio.datasets.uploads.folder(upload) / FOLDER))
            made = await asyncio.to_thread(add_version, studio, request, name, version, changes)
        return {**made, "message": f"{name} gets a new version with the image as {label}."}

    return routes


def _newest(studio: Studio, name: str, label: str) -> VersionRow:
    """The version that images of a class are added to."""
    row = studio.datasets.index.get(name)
    if row is None or row.newest is None:
        raise HTTPException(404, f"there is no dataset {name}")
    if row.state == "making":  # the version that is made would not have the images, and theirs not its changes
        raise UserError(
            "studio", f"{name} is being changed by job {row.jobs[0].number}. Add the image when it is done."
        )
    if label not in row.newest.classes or row.newest.labels != "class":
        known = ", ".join(row.newest.classes[:20])
        raise UserError("studio", f"a class of {name} is required ({known}), got {label[:60]!r}.")
    if {"/", "\\"} & set(label):
        raise UserError(
            "studio", f"a class that can be the name of a folder is required, got {label!r}. Rename it first."
        )
    return row.newest


async def _chunks(content: bytes | Path) -> AsyncIterator[bytes]:
    yield content if isinstance(content, bytes) else await asyncio.to_thread(content.read_bytes)
