"""Predictions for many images: start a batch, its results, its images."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, Response
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

from ...data.images import Unreadable
from ...errors import UserError
from ...jobs.prediction.predictions import PredictionRequest, new_folder, submit_predictions
from ...jobs.prediction.results import RESULTS, TABLE, StoredPrediction, best_per_class
from ..decoding import shared_decoder
from ..library.batches import PredictionBatch, rows_of, selected
from ..library.loaded import weights_file
from ..library.usable import UsableNetwork, usable_network
from ..ui.context import Studio
from ..uploads import receive, unpack_zip
from .submission import submitter

SIDE, LARGE = 160, 640  # pixels of a thumbnail, and of one image
MOST = 1000  # rows in an answer
LARGEST = 64 << 20  # bytes of an image file that is shown


class NewPredictions(BaseModel):
    """What to predict: a folder, a list (.txt or .csv with a path and a label a line) or an image file on the server."""

    model_config = ConfigDict(extra="forbid")
    network: str = Field(description="id of a network, see /networks/usable")
    path: str
    checkpoint: str = "best"
    top: Annotated[int, Field(ge=1, le=100)] = 5
    device: str = "cpu"


class BatchFacts(BaseModel):
    """A batch of predictions."""

    number: int
    network: str
    source: str
    status: str
    job: int | None
    created: float
    images: int
    done: int
    accuracy: float | None = None
    top5_accuracy: float | None = None
    failed: int | None = None
    message: str | None = None
    open: str | None = Field(None, description="page that shows it")


class BatchResults(BatchFacts):
    """A batch with what came out; see predictions.json."""

    results: dict[str, Any]


class PredictionRow(BaseModel):
    """The prediction for one image."""

    index: int
    path: str
    label: str
    error: str
    classes: list[tuple[str, float]]
    numbers: list[float]


class PredictionRows(BaseModel):
    """A part of the predictions of a batch; `total` counts all that were asked for."""

    total: int
    rows: list[PredictionRow]


def router(studio: Studio) -> APIRouter:
    """The routes below /predictions."""
    routes = APIRouter(prefix="/predictions", tags=["predictions"])

    _add_batches(routes, studio)
    _add_results(routes, studio)
    return routes


def _add_batches(routes: APIRouter, studio: Studio) -> None:
    """The routes that list batches and start one."""

    @routes.get("", response_model=list[BatchFacts])
    def batches(most: Annotated[int, Query(ge=1, le=1000)] = 50) -> list[dict[str, Any]]:
        """The last batches, the newest first."""
        return [_facts(one) for one in studio.batches.recent(most)]

    @routes.post("", response_model=BatchFacts)
    def create(asked: NewPredictions, sent: Request) -> dict[str, Any]:
        """Classify a folder or a list of images on the server, as a job of the queue."""
        network, path = _network(studio, asked.network, asked.checkpoint), studio.paths.path(asked.path)
        request = PredictionRequest(
            str(network.path), [str(path)], asked.checkpoint, asked.top, asked.device, [str(root) for root in studio.paths.roots]
        )  # fmt: skip
        return _start(studio, network, request, path.name, None, submitter(studio, sent))

    @routes.post("/upload", response_model=BatchFacts)
    async def upload(
        request: Request,
        network: str,
        name: str = "images.zip",
        checkpoint: str = "best",
        top: Annotated[int, Query(ge=1, le=100)] = 5,
    ) -> dict[str, Any]:
        """Classify the images of a zip file, which is the body of the request. Folders named like classes are labels."""
        found, owner = _network(studio, network, checkpoint), await run_in_threadpool(submitter, studio, request)
        folder = new_folder(studio.queue.root)
        try:
            archive, images = folder / "upload.zip", folder / "images"
            await receive(request.stream(), archive, studio.config.largest_upload)
            images.mkdir()
            await run_in_threadpool(unpack_zip, archive, images, studio.config.largest_upload)
            archive.unlink()
            asked = PredictionRequest(str(found.path), [str(images)], checkpoint, top, "cpu", [str(images.resolve())])
            return await run_in_threadpool(_start, studio, found, asked, Path(name).name, folder, owner)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _add_results(routes: APIRouter, studio: Studio) -> None:
    """The routes about one batch: its images, its predictions, its files."""

    @routes.get("/file.jpg", response_class=Response)
    def file(path: str) -> Response:
        """A small picture of an image file on the server."""
        return Response(_thumbnail(studio, path, LARGE), media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    @routes.get("/{number}", response_model=BatchResults)
    def batch(number: int) -> dict[str, Any]:
        """One batch: how far it is, and its results."""
        found = _find(studio, number)
        return {**_facts(found), "results": dict(found.results)}

    @routes.delete("/{number}")
    def delete(number: int) -> dict[str, Any]:
        """Remove the predictions of a batch and, of an upload, its images."""
        studio.batches.delete(_find(studio, number))
        return {"message": f"Predictions {number} are deleted.", "open": "/classify?tab=many"}

    @routes.get("/{number}/rows", response_model=PredictionRows)
    def rows(
        number: int,
        show: Literal["all", "wrong", "failed"] = "all",
        order: Literal["file", "confident", "unsure"] = "file",
        predicted: str = "",
        true: str = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST)] = 100,
    ) -> dict[str, Any]:
        """The predictions: all, the wrong ones or those that failed; of one class; in the order of files or of confidence."""
        found = selected(rows_of(_find(studio, number)), show, order, predicted, true)
        return {"total": len(found), "rows": [_row(one) for one in found[offset : offset + limit]]}

    @routes.get("/{number}/best", response_model=dict[str, list[PredictionRow]])
    def best(number: int, most: Annotated[int, Query(ge=1, le=100)] = 10) -> dict[str, Any]:
        """The most confident images of each class."""
        found = _find(studio, number)
        by_class = best_per_class(rows_of(found), found.results.get("classes", ()), most)
        return {name: [_row(one) for one, _ in pairs] for name, pairs in by_class.items()}

    @routes.get("/{number}/predictions.csv", response_class=FileResponse)
    def table(number: int) -> FileResponse:
        """All predictions as CSV."""
        return _file(_find(studio, number).folder / TABLE, f"predictions-{number}.csv")

    @routes.get("/{number}/predictions.json", response_class=FileResponse)
    def results(number: int) -> FileResponse:
        """The results as JSON."""
        return _file(_find(studio, number).folder / RESULTS, f"predictions-{number}.json")

    @routes.get("/{number}/images/{index}.jpg", response_class=Response)
    def image(number: int, index: int) -> Response:
        """A small picture of one image."""
        rows = rows_of(_find(studio, number))
        if not 0 <= index < len(rows):
            raise HTTPException(404, f"there is no image {index}")
        return Response(
            _thumbnail(studio, rows[index].path),
            media_type="image/jpeg",
            headers={"Cache-Control": "private, max-age=3600"},
        )


def _find(studio: Studio, number: int) -> PredictionBatch:
    found = studio.batches.get(number)
    if found is None:
        raise HTTPException(404, f"there are no predictions {number}")
    return found


def _network(studio: Studio, name: str, checkpoint: str) -> UsableNetwork:
    found = usable_network(studio.index, name)
    if found is None:
        raise HTTPException(404, f"there is no run and no imported network {name}")
    weights_file(found.path, checkpoint)
    return found


def _start(
    studio: Studio, network: UsableNetwork, request: PredictionRequest, source: str, folder: Path | None, owner: str
) -> dict[str, Any]:
    """Add the job of a batch; its facts."""
    named = {"network_id": network.id, "network_name": network.name, "source_name": source}
    _, out = submit_predictions(studio.queue, request, folder, owner, **named)
    studio.feed.refresh_soon()
    number = int(out.name)
    return {
        **_facts(_find(studio, number)),
        "message": f"{source} is classified as soon as there is room.",
        "open": f"/classify/batches/{number}",
    }


def _thumbnail(studio: Studio, path: str, side: int = SIDE) -> bytes:
    """A JPEG of an image file that somebody has sent, or named."""
    try:
        file = studio.paths.path(path, "file")
        if file.stat().st_size > LARGEST:
            raise Unreadable(f"is larger than {LARGEST >> 20} MiB")
        pixels = shared_decoder().scaled(file.read_bytes(), side)
    except (Unreadable, UserError, OSError) as error:
        reason = error.message if isinstance(error, UserError) else error
        raise HTTPException(404, f"the image cannot be shown: {reason}") from None
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    if max(image.size) < side // 2:  # small images are shown pixel by pixel
        factor = side // max(image.size)
        image = image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=88)
    return content.getvalue()


def _file(path: Path, name: str) -> FileResponse:
    if not path.exists():
        raise HTTPException(404, "nothing is predicted yet")
    return FileResponse(path, filename=name, content_disposition_type="attachment")


def _facts(batch: PredictionBatch) -> dict[str, Any]:
    results = batch.results
    return {
        "number": batch.number, "network": batch.network, "source": batch.source, "status": batch.status, "job": batch.job,
        "created": batch.created, "images": batch.images, "done": batch.done, "accuracy": results.get("accuracy"),
        "top5_accuracy": results.get("top5_accuracy"), "failed": results.get("failed"),
    }  # fmt: skip


def _row(one: StoredPrediction) -> dict[str, Any]:
    return {
        "index": one.index, "path": one.path, "label": one.label, "error": one.error, "classes": list(one.best),
        "numbers": list(one.numbers),
    }  # fmt: skip
