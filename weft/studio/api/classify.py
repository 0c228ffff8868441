"""Predictions: the network of a run on one image."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, UploadFile

from ..ui.context import Studio

LARGEST = 32 << 20  # bytes of an image file


def router(studio: Studio) -> APIRouter:
    """The routes below /networks."""
    routes = APIRouter(prefix="/networks", tags=["networks"])

    @routes.post("/{run:path}/classify")
    def classify(run: str, image: UploadFile, top: int = 5) -> dict[str, Any]:
        """Classify one image with the network of a run."""
        row = studio.index.get(run)
        if row is None:
            raise HTTPException(404, f"there is no run {run}")
        content = image.file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise HTTPException(413, f"images of up to {LARGEST >> 20} MiB are accepted")
        found = studio.networks.get(row.folder).predict(content, top)
        return {
            "run": run, "classes": [{"name": name, "probability": share} for name, share in found.classes],
            "numbers": list(found.numbers), "milliseconds": found.milliseconds,
        }  # fmt: skip

    return routes
