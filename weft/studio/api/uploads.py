"""Uploads, as streams that are written to disk as they arrive; and completions of paths on the server."""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request

from ...errors import UserError
from ...report.text_format import counted
from ..ui.context import Studio

COUNTED = 2000  # entries of a folder at most


def router(studio: Studio) -> APIRouter:
    """The routes below /uploads, and /paths."""
    routes = APIRouter(tags=["uploads"])
    store = studio.datasets.uploads

    @routes.get("/paths")
    def paths(typed: str = "", folders: bool = False) -> list[dict[str, str]]:
        """Paths of the server that begin with what was typed; folders end with a slash, and say what they hold."""
        return [
            {"path": path, "about": _about(studio, path) if path.endswith("/") else ""}
            for path in studio.paths.complete(typed, folders)
        ]

    @routes.post("/uploads")
    def new() -> dict[str, str]:
        """Begin an upload."""
        return {"upload": store.new()}

    @routes.put("/uploads/{upload}/files/{path:path}")
    async def file(upload: str, path: str, request: Request) -> dict[str, int]:
        """A file of an upload: its content is the body of the request."""
        return {"bytes": await store.add_file(upload, path, request.stream())}

    @routes.put("/uploads/{upload}/archive")
    async def archive(upload: str, request: Request) -> dict[str, int]:
        """A zip file, which is unpacked: its content is the body of the request."""
        return {"files": await store.add_zip(upload, request.stream())}

    @routes.delete("/uploads/{upload}")
    async def discard(upload: str) -> dict[str, Any]:
        """Remove an upload that nothing was made of."""
        await asyncio.to_thread(store.discard, upload)
        return {"message": "The upload was removed."}

    return routes


def _about(studio: Studio, path: str) -> str:
    """How many folders and files a folder holds, as far as that is quick to count."""
    try:
        with os.scandir(studio.paths.path(path)) as entries:
            kinds = [one.is_dir() for one in islice(entries, COUNTED)]
    except (OSError, UserError):
        return ""
    folders, files = sum(kinds), len(kinds) - sum(kinds)
    more = "more than " if len(kinds) == COUNTED else ""
    parts = [counted(folders, "folder")] * bool(folders) + [counted(files, "file")] * bool(files)
    return more + ", ".join(parts) if parts else "empty"
