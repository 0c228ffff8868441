"""What people do with a run: stop, pause, extend, branch, checkpoints, export, download."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from ...jobs.checkpoints import Checkpoint, checkpoints, delete_checkpoint, keep_checkpoints
from ...jobs.export_job import exported_files, submit_export
from ...jobs.queue.kinds import EXPORT
from ...jobs.queue.run_control import branch_run, resume_run, stop_run
from ..ui.context import Studio
from .run_results import attached, find_row
from .submission import submitter

CHUNK = 1 << 20


class Extension(BaseModel):
    """How many epochs a run has in all, or how many more."""

    model_config = ConfigDict(extra="forbid")
    epochs: int | None = Field(None, ge=1)
    more: int | None = Field(None, ge=1)


class Branching(BaseModel):
    """A new run from a checkpoint; `settings` replace those of the first run."""

    model_config = ConfigDict(extra="forbid")
    checkpoint: str
    name: str
    settings: dict[str, Any] = {}


class Kept(BaseModel):
    """Of how many best and last epochs the weights are kept."""

    model_config = ConfigDict(extra="forbid")
    best: int = Field(0, ge=0)
    last: int = Field(0, ge=0)


class ExportRequest(BaseModel):
    """A format, and for C libraries the machine and the batch size."""

    model_config = ConfigDict(extra="forbid")
    to: str = "weft"
    target: str = "host"
    batch: int = Field(1, ge=1)
    weights: str = "inside"
    threads: int = Field(1, ge=1)


def router(studio: Studio) -> APIRouter:
    """The routes below /runs/{run} that change something, and downloads."""
    routes = APIRouter(prefix="/runs", tags=["runs"])

    def told(message: str, **facts: Any) -> dict[str, Any]:
        studio.feed.refresh_soon()
        return {"message": message, **facts}

    @routes.post("/{run:path}/stop")
    def stop(run: str) -> dict[str, Any]:
        """Stop a run after its step, with a checkpoint, whoever started it."""
        row = find_row(studio, run)
        stop_run(studio.queue, row.folder)
        return told(f"{row.name} stops after its step.")

    @routes.post("/{run:path}/pause")
    def pause(run: str) -> dict[str, Any]:
        """Stop a run with a checkpoint; its job stays in sight."""
        row = find_row(studio, run)
        stop_run(studio.queue, row.folder, pause=True)
        return told(f"{row.name} pauses after its step.")

    @routes.post("/{run:path}/extend")
    def extend(request: Request, run: str, change: Extension) -> dict[str, Any]:
        """Train a run for more epochs. The learning rate follows its schedule stretched over all of them."""
        row = find_row(studio, run)
        epochs = change.epochs if change.more is None else row.planned + change.more
        if epochs is None:
            raise HTTPException(400, "epochs or more is required")
        job = resume_run(studio.queue, row.folder, epochs, submitter(studio, request))
        return told(f"{row.name} goes on to epoch {epochs} as soon as there is room.", number=job.number)

    @routes.post("/{run:path}/branch")
    def branch(request: Request, run: str, change: Branching) -> dict[str, Any]:
        """A new run from a checkpoint: from its exact state, or from weights with a fresh optimizer."""
        row = find_row(studio, run)
        owner = submitter(studio, request)
        job = branch_run(studio.queue, row.folder, change.checkpoint, change.name, change.settings, owner)
        return told(f"{change.name} starts as soon as there is room.", number=job.number, open="/queue")

    @routes.get("/{run:path}/checkpoints")
    def listed(run: str) -> list[dict[str, Any]]:
        """The checkpoints of a run."""
        return [checkpoint_facts(one) for one in checkpoints(find_row(studio, run).folder)]

    @routes.post("/{run:path}/checkpoints/keep")
    def keep(run: str, change: Kept) -> dict[str, Any]:
        """Delete the weights of single epochs, except those of some best and some last ones."""
        gone = keep_checkpoints(find_row(studio, run).folder, change.best, change.last)
        return told(f"{len(gone)} checkpoints were deleted.", deleted=gone)

    @routes.delete("/{run:path}/checkpoints/{part}/{name}")
    def delete(run: str, part: str, name: str) -> dict[str, Any]:
        """Delete a checkpoint."""
        freed = delete_checkpoint(find_row(studio, run).folder, f"{part}/{name}")
        return told(f"{part}/{name} was deleted.", bytes=freed)

    @routes.get("/{run:path}/exports")
    def exports(run: str) -> dict[str, Any]:
        """Exported files of a run, and exports that wait, run or have failed."""
        row = find_row(studio, run)
        files = [{"file": f"exports/{path.name}", "bytes": path.stat().st_size, "time": path.stat().st_mtime} for path in exported_files(row.folder)]  # fmt: skip
        return {"files": files, "jobs": export_jobs(studio, row.folder)}

    @routes.post("/{run:path}/exports")
    def export(request: Request, run: str, change: ExportRequest) -> dict[str, Any]:
        """Export the network of a run, as a job."""
        row = find_row(studio, run)
        job = submit_export(studio.queue, row.folder, change.model_dump(), submitter(studio, request))
        return told(f"{row.name} is exported as {change.to}.", number=job.number)

    @routes.get("/{run:path}/download.zip")
    def download(run: str, state: bool = False) -> StreamingResponse:
        """All files of a run as one zip file, made while it is sent; with `state` also the checkpoints to resume from."""
        row = find_row(studio, run)
        paths = [p for p in sorted(row.folder.rglob("*")) if _is_offered(p, row.folder, state)]
        return StreamingResponse(zipped(row.folder, paths), media_type="application/zip", headers=attached(f"{row.name}.zip"))  # fmt: skip

    return routes


def checkpoint_facts(one: Checkpoint) -> dict[str, Any]:
    """A checkpoint as the API shows it."""
    return {
        "name": one.name, "epoch": one.epoch, "steps": one.steps, "metric": one.metric, "value": one.value, "bytes": one.bytes,
        "time": one.time, "exact": one.is_exact, "can_be_deleted": one.can_be_deleted,
    }  # fmt: skip


def export_jobs(studio: Studio, folder: Path) -> list[dict[str, Any]]:
    """Exports of a run that are not done."""
    found = []
    for job in studio.queue.jobs():
        state = job.state
        if state.state != "done" and job.kind == EXPORT and Path(str(job.readable_settings.get("run"))) == folder:
            found.append({"number": job.number, "to": job.settings["to"], "state": state.state, "why": state.why})
    return found


def _is_offered(path: Path, folder: Path, state: bool) -> bool:
    parts = path.relative_to(folder).parts
    hidden = any(part.startswith(".") for part in parts)
    return path.is_file() and not path.is_symlink() and not hidden and (state or parts[0] != "state")


class _Pipe(io.RawIOBase):
    """Takes what a zip file writes, until it is sent on."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        found, self.parts = b"".join(self.parts), []
        return found


def zipped(folder: Path, paths: list[Path]) -> Iterator[bytes]:
    """A zip file of these files, piece by piece: no file is held in memory."""
    pipe = _Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_STORED) as packed:
        for path in paths:
            entry = zipfile.ZipInfo.from_file(path, Path(folder.name) / path.relative_to(folder))
            with path.open("rb") as source, packed.open(entry, "w", force_zip64=True) as target:
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    yield pipe.taken()
    yield pipe.taken()
