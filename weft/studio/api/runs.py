"""Runs: list, one, its metrics, its files and images; resume."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ...jobs.annotations import annotate
from ...jobs.queue.record import WAITING
from ...jobs.schema import as_text
from ...jobs.trash import delete_runs, restore_runs
from ...report.png import png
from ...report.run_record import read_run
from ..library.runs import RunRow
from ..paths import is_path_text
from ..ui.context import Studio
from .models import Resumed, RunDetails, RunFacts
from .submission import submitter


class AnnotationChange(BaseModel):
    """A change of annotations; what is not given stays."""

    model_config = ConfigDict(extra="forbid")
    tags: list[str] | None = None
    add_tags: list[str] = []
    remove_tags: list[str] = []
    notes: str | None = None
    group: str | None = None
    starred: bool | None = None


class AnnotationChanges(AnnotationChange):
    """A change of the annotations of several runs."""

    runs: list[str]


class ChosenRuns(BaseModel):
    """Runs by their folders below the folder of runs."""

    runs: list[str] = Field(min_length=1, max_length=10_000)


class DeletedRuns(BaseModel):
    """An entry of the trash."""

    entry: str


def router(studio: Studio) -> APIRouter:
    """The routes below /runs."""
    routes = APIRouter(prefix="/runs", tags=["runs"])

    _add_list(routes, studio)
    _add_one(routes, studio)
    return routes


def _add_list(routes: APIRouter, studio: Studio) -> None:
    """The routes about several runs."""

    @routes.get("", response_model=list[RunFacts])
    def runs() -> list[dict[str, Any]]:
        """All runs, the newest first."""
        return [_facts(row) for row in studio.index.rows()]

    @routes.get("/export")
    def export(runs: str) -> Response:
        """Several runs as CSV: settings, metrics of the best epoch, annotations."""
        text = runs_csv([_find(studio, run) for run in runs.split(",") if run])
        return Response(text, media_type="text/csv", headers={"Content-Disposition": 'attachment; filename="runs.csv"'})

    @routes.post("/annotate")
    def annotate_all(change: AnnotationChanges) -> dict[str, Any]:
        """Change tags, group and star of several runs."""
        folders = [_find(studio, run).folder for run in change.runs]
        for folder in folders:
            annotate(folder, **change.model_dump(exclude={"runs"}))
        studio.feed.refresh_soon()
        return {"message": f"{len(folders)} run{'s' if len(folders) != 1 else ''} changed."}

    @routes.post("/delete")
    def delete(chosen: ChosenRuns) -> dict[str, Any]:
        """Move runs to the trash."""
        rows = [_find(studio, run) for run in chosen.runs]
        entry = delete_runs(studio.index.root, [row.folder for row in rows])
        studio.feed.refresh_soon()
        what = rows[0].name if len(rows) == 1 else f"{len(rows)} runs"
        undo = {"method": "POST", "path": "/runs/restore", "body": {"entry": entry.id}}
        return {"entry": entry.id, "message": f"{what} moved to the trash.", "undo": undo}

    @routes.post("/restore")
    def restore(deleted: DeletedRuns) -> dict[str, Any]:
        """Move the runs of a deletion back to where they were."""
        entry = restore_runs(studio.index.root, deleted.entry)
        studio.feed.refresh_soon()
        return {
            "runs": list(entry.runs),
            "message": f"{len(entry.runs)} run{'s' if len(entry.runs) != 1 else ''} restored.",
        }


def _add_one(routes: APIRouter, studio: Studio) -> None:
    """The routes about one run."""

    @routes.get("/{run:path}/metrics")
    def metrics(run: str) -> dict[str, list[float | None]]:
        """The metrics of a run, by epoch."""
        return dict(_find(studio, run).metrics)

    @routes.get("/{run:path}/files/{file:path}", response_class=FileResponse)
    def file(run: str, file: str) -> FileResponse:
        """A file of a run, to download."""
        path = inside(_find(studio, run).folder, file)
        return FileResponse(path, filename=path.name, content_disposition_type="attachment")

    @routes.get("/{run:path}/images/{kind}/{number}.png", response_class=Response)
    def image(run: str, kind: str, number: int) -> Response:
        """A sample or a mistake of a run, as a picture."""
        record = read_run(_find(studio, run).folder)
        samples = {"samples": record.samples, "mistakes": record.mistakes}.get(kind)
        if samples is None or not 0 <= number < len(samples.images):
            raise HTTPException(404, f"there is no image {number} of {kind}")
        return Response(
            png(samples.images[number]), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"}
        )

    @routes.patch("/{run:path}/annotations")
    def change_annotations(run: str, change: AnnotationChange) -> dict[str, Any]:
        """Change tags, notes, group and star of a run."""
        new = annotate(_find(studio, run).folder, **change.model_dump())
        studio.feed.refresh_soon()
        return asdict(new)

    @routes.post("/{run:path}/resume", response_model=Resumed)
    def resume(request: Request, run: str) -> dict[str, Any]:
        """Continue a run that was stopped from its last checkpoint, as a job of the queue."""
        row = _find(studio, run)
        for job in studio.queue.jobs():
            if job.state.run and Path(job.state.run).resolve() == row.folder.resolve():
                studio.queue.resume(job)
                break
        else:
            job = studio.queue.add(row.settings, owner=submitter(studio, request))
            job.set(WAITING, run=str(row.folder))
        studio.feed.refresh_soon()
        return {"number": job.number, "message": f"{row.name} continues as soon as there is room."}

    @routes.get("/{run:path}", response_model=RunDetails)
    def one(run: str) -> dict[str, Any]:
        """One run: settings, status, best epoch, metrics."""
        row = _find(studio, run)
        return {
            **_facts(row),
            "settings": dict(row.settings),
            "summary": dict(row.summary),
            "metrics": dict(row.metrics),
        }


def _find(studio: Studio, run: str) -> RunRow:
    found = studio.index.get(run)
    if found is None:
        raise HTTPException(404, f"there is no run {run}")
    return found


def inside(folder: Path, relative: str) -> Path:
    """A file inside a folder. Links and `..` that lead out of it are rejected."""
    path = (folder / relative).resolve() if is_path_text(relative) else folder
    if not path.is_relative_to(folder.resolve()) or not path.is_file() or path.name.startswith("."):
        raise HTTPException(404, f"there is no file {relative}")
    return path


def _facts(row: RunRow) -> dict[str, Any]:
    return {
        "id": row.id, "name": row.name, "model": row.model, "data": row.data, "status": row.status, "epochs": row.epochs,
        "planned": row.planned, "best_metric": row.best_metric, "best": row.best, "best_epoch": row.best_epoch, "seconds": row.seconds,
        "started": row.started, "problems": list(row.problems), **asdict(row.annotations),
    }  # fmt: skip


def runs_csv(rows: Sequence[RunRow]) -> str:
    """Runs as CSV, one a line: facts, annotations, every setting and every metric at the best epoch."""
    settings = list(dict.fromkeys(name for row in rows for name in row.settings))
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["run", "status", "best_epoch", "seconds", "group", "tags", *settings, *metrics])
    for row in rows:
        notes = row.annotations
        given = [as_text(row.settings.get(name)) for name in settings]
        values = [row.value_at(name, row.best_index) for name in metrics]
        writer.writerow(
            [row.id, row.status, row.best_epoch, row.seconds, notes.group, " ".join(notes.tags), *given, *values]
        )
    return text.getvalue()
