"""The embedding map of a run: start the job that makes it, its points, and their pictures."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from ...jobs.embedding import EXAMPLES, EmbeddingMap
from ...jobs.run_weights import weight_names
from ...report.png import png
from ..library.embeddings import submit_embedding
from ..library.runs import RunRow
from ..ui.context import Studio
from .submission import submitter


class EmbeddingWanted(BaseModel):
    """What to embed."""

    model_config = ConfigDict(extra="forbid")
    checkpoint: str = Field(default="best", description="best, last, or that of an epoch, such as epoch-0007")
    examples: int = Field(default=EXAMPLES, ge=10, le=5000, description="held-out images of the map")


def router(studio: Studio) -> APIRouter:
    """The routes below /runs."""
    routes = APIRouter(prefix="/runs", tags=["runs"])

    def find(run: str) -> RunRow:
        row = studio.index.get(run)
        if row is None:
            raise HTTPException(404, f"there is no run {run}")
        return row

    def made(run: str, checkpoint: str) -> EmbeddingMap:
        folder = find(run).folder
        found = studio.embeddings.get(folder, checkpoint) if checkpoint in weight_names(folder) else None
        if found is None:
            raise HTTPException(404, f"the map of {run} is not made yet: POST /runs/{run}/embedding")
        return found

    @routes.post("/{run:path}/embedding")
    def start(request: Request, run: str, wanted: EmbeddingWanted | None = None) -> dict[str, Any]:
        """Make the map, as a job of the queue."""
        settings = (wanted or EmbeddingWanted()).model_dump()
        job = submit_embedding(studio.queue, find(run), settings, submitter(studio, request))
        studio.feed.refresh_soon()
        return {"number": job.number, "message": "The map is made as soon as there is room."}

    @routes.get("/{run:path}/embedding")
    def points(run: str, checkpoint: str = "best") -> dict[str, Any]:
        """The points: places by PCA and t-SNE, labels, predictions and their probabilities."""
        return as_points(made(run, checkpoint))

    @routes.get("/{run:path}/embedding/{number}.png")
    def picture(run: str, number: int, checkpoint: str = "best", v: str = "") -> Response:
        """The image of a point."""
        thumbs = made(run, checkpoint).thumbs
        if not 0 <= number < len(thumbs):
            raise HTTPException(404, f"there is no point {number}")
        return Response(png(thumbs[number]), media_type="image/png", headers={"Cache-Control": "private, max-age=3600"})

    return routes


def as_points(found: EmbeddingMap) -> dict[str, Any]:
    """The map as JSON, without vectors and pictures."""
    return {
        "classes": found.classes, "split": found.facts["split"], "checkpoint": found.facts["checkpoint"],
        "pca": found.pca.round(4).tolist(), "tsne": found.tsne.round(4).tolist(), "labels": found.labels.tolist(),
        "predicted": found.predicted.tolist(), "index": found.indices.tolist(),
        "probability": [round(float(p), 4) if p == p else None for p in found.probability],
    }  # fmt: skip
