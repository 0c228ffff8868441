"""Cross-validations: the list, one with its metrics, and its out-of-fold predictions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

from ..library.folds import FoldsSnapshot
from ..ui.context import Studio


def router(studio: Studio) -> APIRouter:
    """The routes below /folds."""
    routes = APIRouter(prefix="/folds", tags=["cross-validations"])

    @routes.get("")
    def all_folds() -> list[dict[str, Any]]:
        """All cross-validations, the newest first, with mean and standard deviation of each metric."""
        return [_facts(one) for one in studio.feed.look().folds]

    @routes.get("/{name}")
    def folds(name: str) -> dict[str, Any]:
        """One cross-validation."""
        return _facts(_find(studio, name))

    @routes.get("/{name}/out_of_fold.csv")
    def out_of_fold(name: str) -> FileResponse:
        """A prediction for every training example by the network that was not trained on it."""
        found = _find(studio, name).table
        if found is None:
            raise HTTPException(404, f"{name} has no out-of-fold predictions yet: its folds are not done.")
        return FileResponse(found, media_type="text/csv", filename=f"{name}-out-of-fold.csv")

    return routes


def _find(studio: Studio, name: str) -> FoldsSnapshot:
    found = next((one for one in studio.feed.look().folds if one.name == name), None)
    if found is None:
        raise HTTPException(404, f"There is no cross-validation {name}.")
    return found


def _facts(one: FoldsSnapshot) -> dict[str, Any]:
    return {
        "name": one.name, "status": one.status, "folds": one.folds, "model": one.model, "data": one.data, "examples": one.examples,
        "runs": list(one.runs), "metrics": {name: dict(metric) for name, metric in one.metrics.items()},
    }  # fmt: skip
