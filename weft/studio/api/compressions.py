"""Compressions of a run: start one, follow its points, keep a point as a run of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from ...errors import UserError
from ...jobs.compression.settings import COMPRESSION
from ...jobs.compression.state import find_point, is_compression, keep_point
from ...jobs.queue.submission import submit_compression
from ...jobs.schema import as_text, described
from ..access import current_user
from ..library.compressions import CompressionView
from ..library.owners import check_disk_quota
from ..library.runs import RunRow
from ..store.accounts import LOCAL
from ..ui.context import Studio
from .run_results import find_row

OWN = ("run", "runs", "exist_ok", "report", "keep", "json")  # decided by the server


class NewCompression(BaseModel):
    """Settings as weft compress takes them; empty ones have their defaults."""

    model_config = ConfigDict(extra="allow")
    method: str = ""
    target: str = Field("", description="size=20x or error=+0.1%; without one it is a sweep")


class KeptPoint(BaseModel):
    """The name of the new run."""

    model_config = ConfigDict(extra="forbid")
    name: str = ""


def router(studio: Studio) -> APIRouter:
    """The routes below /runs/{run} about compression."""
    routes = APIRouter(prefix="/runs", tags=["compression"])

    @routes.get("/{run:path}/compressions/settings")
    def settings(run: str) -> list[dict[str, Any]]:
        """The settings of a compression: type, default and help of each."""
        find_row(studio, run)
        return [one for one in described(COMPRESSION) if one["name"] not in OWN]

    @routes.get("/{run:path}/compressions")
    def compressions(run: str) -> list[dict[str, Any]]:
        """The compressions of a run, the newest first, with the points that are measured; of a compressed run, its own."""
        views = studio.compressions.of(find_row(studio, run), studio.feed.snapshot)
        return [view_facts(view) for view in views]

    @routes.post("/{run:path}/compressions")
    def start(run: str, wanted: NewCompression, request: Request) -> dict[str, Any]:
        """Compress a run, as a job of the queue. The settings are checked now."""
        row, user = find_row(studio, run), current_user(request)
        given = given_settings(wanted.model_dump())
        check_source(row)
        if user.way != LOCAL:
            check_disk_quota(user.name, studio.store.quota(user.name), studio.queue.jobs())
        job = submit_compression(studio.queue, {**given, "run": str(row.folder)}, user.name)
        studio.feed.refresh_soon()
        return {"number": job.number, "message": f"{row.name} is compressed as soon as there is room."}

    @routes.get("/{run:path}/compression/points/{number}")
    def point(run: str, number: int) -> dict[str, Any]:
        """A point of a compressed run with its layers."""
        return find_point(compressed(studio, run).folder, number)

    @routes.post("/{run:path}/compression/points/{number}/keep")
    def keep(run: str, number: int, wanted: KeptPoint | None = None) -> dict[str, Any]:
        """Copy a point of a compressed run into a run of its own."""
        row = compressed(studio, run)
        made = keep_point(row.folder, number, (wanted or KeptPoint()).name.strip() or None)
        studio.feed.look(at_all_runs=True)  # so that its page is there when the browser opens it
        name = made.relative_to(studio.index.root).as_posix()
        return {"run": name, "message": f"Point {number} is the run {made.name}.", "open": f"/runs/{name}"}

    return routes


def compressed(studio: Studio, run: str) -> RunRow:
    """A run that is a compression."""
    row = find_row(studio, run)
    if not is_compression(row.folder):
        raise UserError(
            "studio", f"a compressed run is required, got {run}. POST /runs/{run}/compressions makes one of it."
        )
    return row


def check_source(row: RunRow) -> None:
    """Only a trained network that is not compressed yet can be compressed: known before the job runs."""
    if is_compression(row.folder):
        raise UserError("studio", f"{row.name} is compressed already. Compress the run that it came from.")
    if not (row.folder / "weights" / "best.safetensors").exists():
        raise UserError("studio", f"{row.name} has no weights yet: its first epoch is not done.")


def given_settings(given: Mapping[str, Any]) -> dict[str, str]:
    """What a form or a program sent, as texts, without what is empty."""
    for name in given:
        if name not in COMPRESSION or name in OWN:
            raise UserError("studio", f"a setting of a compression is required, got {name!r}.")
    return {name: text for name, value in given.items() if value is not None and (text := as_text(value).strip())}


def view_facts(view: CompressionView) -> dict[str, Any]:
    """A compression as JSON, its points without layers."""
    points = [{key: value for key, value in point.items() if key != "layers"} for point in view.points]
    original = {key: value for key, value in (view.original or {}).items() if key != "layers"}
    return {
        "run": view.run, "name": view.name, "status": view.status, "why": view.why, "doing": view.doing, "share": view.share, "job": view.job,
        "settings": dict(view.settings), "planned": view.planned, "chosen": view.chosen, "original": original or None, "points": points,
    }  # fmt: skip
