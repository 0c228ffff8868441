"""Cross-validations: start one, pause and continue it, its metrics, and its out-of-fold predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from ...errors import UserError
from ...jobs.folds.jobs import continue_folds, pause_folds, submit_folds
from ...jobs.schema import as_text
from ...jobs.settings import SETTINGS
from ..access import current_user
from ..library.folds import FoldsSnapshot
from ..library.folds_form import NAME, folds_of, folds_settings
from ..store.credentials import StudioUser
from ..ui.context import Studio
from .submission import OWN, check_disk, confined, submitter


class NewFolds(BaseModel):
    """The settings of a training as weft train takes them, each with one value, and in how many parts the data is divided."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any]
    folds: int = Field(ge=2)


def router(studio: Studio) -> APIRouter:
    """The routes below /folds."""
    routes = APIRouter(prefix="/folds", tags=["cross-validations"])

    @routes.get("")
    def all_folds() -> list[dict[str, Any]]:
        """All cross-validations, the newest first, with mean and standard deviation of each metric."""
        return [_facts(one) for one in studio.feed.look().folds]

    @routes.post("")
    def create(wanted: NewFolds, request: Request) -> dict[str, Any]:
        """Add a cross-validation to the queue: a training for each fold. The settings are checked now."""
        name, number = add_folds(studio, {**wanted.settings, NAME: wanted.folds}, current_user(request))
        return {"name": name, "number": number, "message": f"{name} starts as soon as there is room.", "open": f"/folds/{name}"}  # fmt: skip

    @routes.post("/{name}/pause")
    def pause(name: str) -> dict[str, Any]:
        """Stop a cross-validation; the folds that are trained write a checkpoint and wait."""
        pause_folds(studio.queue, name)
        studio.feed.refresh_soon()
        return {"message": f"{name} is paused as soon as its trainings have written a checkpoint."}

    @routes.post("/{name}/resume")
    def resume(name: str, request: Request) -> dict[str, Any]:
        """Continue a cross-validation that was paused, was stopped or has failed; also one that a command started."""
        job = continue_folds(studio.queue, name, submitter(studio, request))
        studio.feed.refresh_soon()
        return {"number": job.number, "message": f"{name} goes on as soon as there is room."}

    @routes.get("/{name}")
    def folds(name: str) -> dict[str, Any]:
        """One cross-validation."""
        return _facts(find_folds(studio, name))

    @routes.get("/{name}/out_of_fold.csv")
    def out_of_fold(name: str) -> FileResponse:
        """A prediction for every training example by the network that was not trained on it."""
        found = find_folds(studio, name).table
        if found is None:
            raise HTTPException(404, f"{name} has no out-of-fold predictions yet: its folds are not done.")
        return FileResponse(found, media_type="text/csv", filename=f"{name}-out-of-fold.csv")

    return routes


def add_folds(studio: Studio, given: Mapping[str, Any], user: StudioUser) -> tuple[str, int]:
    """Check the settings of a cross-validation and add it to the queue in the name of a person; its name, and the number of its job."""
    texts = {name: as_text(value) for name, value in given.items() if value is not None and as_text(value)}
    for name in texts:
        if name not in (*SETTINGS, NAME) or name in OWN:
            raise UserError("studio", f"a setting of a training is required, got {name!r}.")
    folds = folds_of(texts)
    if folds is None:
        raise UserError("studio", "a number of folds is required, got none: folds=5.")
    check_disk(studio, user)
    job = submit_folds(studio.queue, confined(studio, folds_settings(texts)), folds, user.name)
    studio.feed.refresh_soon()
    return str(job.settings["name"]), job.number


def find_folds(studio: Studio, name: str) -> FoldsSnapshot:
    """A cross-validation by its name."""
    found = next((one for one in studio.feed.look().folds if one.name == name), None)
    if found is None:
        raise HTTPException(404, f"There is no cross-validation {name}.")
    return found


def _facts(one: FoldsSnapshot) -> dict[str, Any]:
    return {
        "name": one.name, "status": one.status, "why": one.why, "job": one.job, "folds": one.folds, "model": one.model, "data": one.data, "examples": one.examples,
        "runs": list(one.runs), "metrics": {name: dict(metric) for name, metric in one.metrics.items()},
    }  # fmt: skip
