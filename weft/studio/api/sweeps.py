"""Sweeps: start one, follow its trials, pause and continue it, download what it has found."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ...errors import UserError
from ...io.json_values import json_value
from ...jobs.schema import as_text, described
from ...jobs.settings import SETTINGS
from ...jobs.sweeps.control import pause_sweep, resume_sweep
from ...jobs.sweeps.record import best_trial
from ...jobs.sweeps.results import parallel_lines
from ...jobs.sweeps.settings import SWEEP
from ...jobs.sweeps.sweep import submit_sweep
from ..access import current_user
from ..library.sweep_form import SEARCH, confined_sweep
from ..library.sweeps import SweepSnapshot
from ..store.credentials import StudioUser
from ..ui.context import Studio
from .submission import OWN, check_disk, confined, submitter


class NewSweep(BaseModel):
    """Settings as weft sweep takes them: those of a training, with lists such as "32,64" and ranges such as "log:1e-4..1e-1", and those of the search."""

    model_config = ConfigDict(extra="forbid")
    settings: dict[str, Any]


class ContinuedSweep(BaseModel):
    """How many trials there will be in all; by default as many as were planned."""

    model_config = ConfigDict(extra="forbid")
    trials: int | None = Field(default=None, ge=1)


def router(studio: Studio) -> APIRouter:
    """The routes below /sweeps."""
    routes = APIRouter(prefix="/sweeps", tags=["sweeps"])

    @routes.get("")
    def sweeps() -> list[dict[str, Any]]:
        """All sweeps, the newest first."""
        return [sweep_facts(one) for one in studio.feed.look().sweeps]

    @routes.get("/settings")
    def settings() -> list[dict[str, Any]]:
        """The settings of the search: type, default and help of each."""
        return [one for one in described(SWEEP) if one["name"] in SEARCH]

    @routes.post("")
    def create(wanted: NewSweep, request: Request) -> dict[str, Any]:
        """Add a sweep to the queue. The settings are checked now."""
        name, number = add_sweep(studio, wanted.settings, current_user(request))
        return {"name": name, "number": number, "message": f"{name} starts as soon as there is room.", "open": f"/sweeps/{name}"}  # fmt: skip

    @routes.get("/{name}")
    def sweep(name: str) -> dict[str, Any]:
        """One sweep: its trials, the importance of settings, and the axes of parallel coordinates."""
        view = find_view(studio, name)
        numbers, axes = parallel_lines(view.record, view.trials) if view.record is not None else ([], [])
        found = {
            **sweep_facts(view), "settings": dict(view.settings), "importance": dict(view.importance),
            "trials": [{**asdict(one), "settings": dict(one.settings)} for one in view.trials],
            "parallel": {"trials": numbers, "axes": [asdict(axis) for axis in axes]},
        }  # fmt: skip
        return {key: json_value(value) for key, value in found.items()}

    @routes.post("/{name}/pause")
    def pause(name: str) -> dict[str, Any]:
        """Stop the search; the trials that run write a checkpoint and wait."""
        pause_sweep(studio.queue, name)
        studio.feed.refresh_soon()
        return {"message": f"{name} is paused as soon as its trials have written a checkpoint."}

    @routes.post("/{name}/resume")
    def resume(name: str, request: Request, wanted: ContinuedSweep | None = None) -> dict[str, Any]:
        """Continue a sweep that was paused, was stopped or has failed, or search more trials."""
        job = resume_sweep(studio.queue, name, (wanted or ContinuedSweep()).trials, submitter(studio, request))
        studio.feed.refresh_soon()
        return {"number": job.number, "message": f"{name} goes on as soon as there is room."}

    @routes.get("/{name}/trials.csv")
    def trials(name: str) -> Response:
        """All trials as a table: state, values, settings, epochs, seconds, run."""
        headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
        return Response(trials_csv(find_view(studio, name)), media_type="text/csv", headers=headers)

    @routes.get("/{name}/report.html")
    def report(name: str) -> FileResponse:
        """The report, which needs no server."""
        view = find_view(studio, name)
        path = None if view.record is None else view.record.folder / "report.html"
        if path is None or not path.is_file():
            raise HTTPException(404, f"{name} has no report yet.")
        return FileResponse(path, media_type="text/html", filename=f"{name}.html")

    return routes


def add_sweep(studio: Studio, settings: Mapping[str, Any], user: StudioUser) -> tuple[str, int]:
    """Check the settings of a sweep and add it to the queue in the name of a person; its name, and the number of its job."""
    for name in settings:
        if name not in (*SETTINGS, *SEARCH) or name in OWN:
            raise UserError("studio", f"a setting of a training or of a search is required, got {name!r}.")
    texts = {name: as_text(value) for name, value in settings.items() if value is not None}
    check_disk(studio, user)
    job = submit_sweep(studio.queue, confined_sweep(texts, lambda one: confined(studio, one)), user.name)
    studio.feed.refresh_soon()
    return str(job.settings["name"]), job.number


def find_view(studio: Studio, name: str) -> SweepSnapshot:
    """A sweep by its name."""
    view = next((one for one in studio.feed.look().sweeps if one.name == name), None)
    if view is None:
        raise HTTPException(404, f"There is no sweep {name}.")
    return view


def sweep_facts(view: SweepSnapshot) -> dict[str, Any]:
    """A sweep in short."""
    facts: dict[str, Any] = {
        "name": view.name, "status": view.status, "why": view.why, "job": view.job, "ended": view.ended, "planned": view.planned, "data": view.data,
        "created": view.created, "searched": [], "metrics": [], "best": None,
    }  # fmt: skip
    if view.record is None:
        return facts
    plan, best = view.record.plan, best_trial(view.record.plan.metrics, view.trials)
    found = None if best is None else {"number": best.number, "run": best.run, "values": best.values, "settings": dict(best.settings)}  # fmt: skip
    return facts | {"searched": [one.name for one in plan.space], "metrics": [one.name for one in plan.metrics], "best": json_value(found)}  # fmt: skip


def trials_csv(view: SweepSnapshot) -> str:
    """The trials for spreadsheets."""
    text = io.StringIO()
    if view.record is not None:
        names = [one.name for one in view.record.plan.space]
        metrics = [one.column for one in view.record.plan.metrics]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["trial", "state", *metrics, *names, "epochs", "seconds", "run", "why"])
        for one in view.trials:
            values = [*(one.values or ()), *[""] * (len(metrics) - len(one.values or ()))]
            settings = [as_text(one.settings.get(name, "")) for name in names]
            writer.writerow([one.number, one.state, *values, *settings, one.epoch, one.seconds, one.run or "", one.why])
    return text.getvalue()
