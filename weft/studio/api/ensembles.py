"""Ensembles: one run of several, made by a job."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from ...jobs.ensembles.job import CHOICES, submit_ensemble
from ...jobs.schema import described
from ..ui.context import Studio
from .folds import find_folds
from .run_results import find_row
from .submission import submitter


class NewEnsemble(BaseModel):
    """Runs by their ids, or the name of a cross-validation that stands for the runs of its folds; the other settings are those of weft ensemble."""

    model_config = ConfigDict(extra="forbid")
    runs: list[str] = Field(default_factory=list, max_length=100)
    folds: str | None = None
    method: str | None = None
    soup: str | None = None
    name: str | None = None
    device: str | None = None


def router(studio: Studio) -> APIRouter:
    """The routes below /ensembles."""
    routes = APIRouter(prefix="/ensembles", tags=["ensembles"])

    @routes.get("/settings")
    def settings() -> list[dict[str, Any]]:
        """The settings of an ensemble: type, default and help of each."""
        return described(CHOICES)

    @routes.post("")
    def create(wanted: NewEnsemble, request: Request) -> dict[str, Any]:
        """Add an ensemble to the queue. The runs are checked now: they must be finished and tell the same classes apart."""
        folders = [str(find_row(studio, run).folder) for run in wanted.runs]
        folders += [] if wanted.folds is None else [str(find_folds(studio, wanted.folds).folder)]
        given = {name: value for name in CHOICES if (value := getattr(wanted, name)) is not None}
        job = submit_ensemble(studio.queue, folders, given, submitter(studio, request))
        studio.feed.refresh_soon()
        name = str(job.settings["name"])
        return {"name": name, "number": job.number, "message": f"{name} is made as soon as there is room: a run like any other."}  # fmt: skip

    return routes
