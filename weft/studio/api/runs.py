"""Runs: list, one, its metrics, its files and images; resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, Response

from ...jobs.record import WAITING
from ...report.png import png
from ...report.run_record import read_run
from ..library.runs import RunRow
from ..ui.context import Studio
from .models import Resumed, RunDetails, RunFacts


def router(studio: Studio) -> APIRouter:
    """The routes below /runs."""
    routes = APIRouter(prefix="/runs", tags=["runs"])

    def find(run: str) -> RunRow:
        found = studio.index.get(run)
        if found is None:
            raise HTTPException(404, f"there is no run {run}")
        return found

    @routes.get("", response_model=list[RunFacts])
    def runs() -> list[dict[str, Any]]:
        """All runs, the newest first."""
        return [_facts(row) for row in studio.index.rows()]

    @routes.get("/{run:path}/metrics")
    def metrics(run: str) -> dict[str, list[float | None]]:
        """The metrics of a run, by epoch."""
        return dict(find(run).metrics)

    @routes.get("/{run:path}/files/{file:path}", response_class=FileResponse)
    def file(run: str, file: str) -> FileResponse:
        """A file of a run, to download."""
        path = inside(find(run).folder, file)
        return FileResponse(path, filename=path.name, content_disposition_type="attachment")

    @routes.get("/{run:path}/images/{kind}/{number}.png", response_class=Response)
    def image(run: str, kind: str, number: int) -> Response:
        """A sample or a mistake of a run, as a picture."""
        record = read_run(find(run).folder)
        samples = {"samples": record.samples, "mistakes": record.mistakes}.get(kind)
        if samples is None or not 0 <= number < len(samples.images):
            raise HTTPException(404, f"there is no image {number} of {kind}")
        return Response(
            png(samples.images[number]), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"}
        )

    @routes.post("/{run:path}/resume", response_model=Resumed)
    def resume(run: str) -> dict[str, Any]:
        """Continue a run that was stopped from its last checkpoint, as a job of the queue."""
        row = find(run)
        for job in studio.queue.jobs():
            if job.state.run and Path(job.state.run).resolve() == row.folder.resolve():
                studio.queue.resume(job)
                break
        else:
            job = studio.queue.add(row.settings)
            job.set(WAITING, run=str(row.folder))
        studio.feed.refresh_soon()
        return {"number": job.number, "message": f"{row.name} continues as soon as there is room."}

    @routes.get("/{run:path}", response_model=RunDetails)
    def one(run: str) -> dict[str, Any]:
        """One run: settings, status, best epoch, metrics."""
        row = find(run)
        return {
            **_facts(row),
            "settings": dict(row.settings),
            "summary": dict(row.summary),
            "metrics": dict(row.metrics),
        }

    return routes


def inside(folder: Path, relative: str) -> Path:
    """A file inside a folder. Links and `..` that lead out of it are refused."""
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()) or not path.is_file() or path.name.startswith("."):
        raise HTTPException(404, f"there is no file {relative}")
    return path


def _facts(row: RunRow) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "model": row.model, "data": row.data, "status": row.status, "epochs": row.epochs,
        "planned": row.planned, "best_metric": row.best_metric, "best": row.best, "best_epoch": row.best_epoch, "seconds": row.seconds,
        "started": row.started, "problems": list(row.problems),
    }  # fmt: skip
