"""Profiles of runs and networks: measure one on a device, list them, read one with its trace and its report page."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from ...insight.energy_forms import DENSITY
from ...insight.profile_record import ProfileRecord
from ...insight.report_page import report_page
from ...jobs.network_store import NetworkStore
from ...jobs.profiles.energy_job import stored_energies, submit_energy
from ...jobs.profiles.job import submit_profile
from ...jobs.profiles.store import StoredProfile, delete_profile, profile_ids
from ...zoo.catalogue import FACTS
from ..library.profiles import ProfiledThing, measurements, profiled_network, profiled_run
from ..library.runs import FINISHED
from ..ui.context import Studio
from .run_results import find_row
from .submission import submitter

MOST_COMPRESSIONS = 4  # that stand beside the forms of a run


class NewProfile(BaseModel):
    """What to measure; empty settings have their defaults."""

    model_config = ConfigDict(extra="forbid")
    device: str = Field(default="cpu", description="cpu, cuda, cuda:1, ...")
    batch: int | None = Field(default=1, ge=1, le=1 << 20, description="examples of a call")
    what: Literal["infer", "train"] = "infer"
    repeats: int | None = Field(default=None, ge=1, le=100_000, description="calls that are timed")


class NewEnergy(BaseModel):
    """What to compare: a call with so many examples, and sparse forms that keep this share of the weights."""

    model_config = ConfigDict(extra="forbid")
    device: str = Field(default="cpu", description="cpu, cuda, cuda:1, ...")
    batch: int = Field(default=1, ge=1, le=1 << 20, description="examples of a call")
    density: float = Field(default=DENSITY, gt=0, le=1, description="share of the weights that sparse forms keep")


def router(studio: Studio) -> APIRouter:
    """The routes about profiles below /runs/{run} and /networks/{name}."""
    routes = APIRouter(tags=["profiles"])

    def of_run(run: str) -> ProfiledThing:
        return profiled_run(find_row(studio, run))

    def of_network(name: str) -> ProfiledThing:
        return profiled_network(studio.config.runs, known_network(studio, name))

    @routes.post("/runs/{run:path}/profiles")
    def measure_run(run: str, request: Request, wanted: NewProfile | None = None) -> dict[str, Any]:
        """Measure a run, as a job of the queue. The settings are checked now."""
        return start(studio, of_run(run), wanted or NewProfile(), submitter(studio, request))

    @routes.post("/networks/{name}/profiles")
    def measure_network(name: str, request: Request, wanted: NewProfile | None = None) -> dict[str, Any]:
        """Measure a network with made-up inputs, as a job of the queue."""
        return start(studio, of_network(name), wanted or NewProfile(), submitter(studio, request))

    @routes.get("/runs/{run:path}/profiles")
    def profiles_of_run(run: str) -> dict[str, Any]:
        """The profiles of a run, the newest first, and the jobs that measure it."""
        return listed(studio, of_run(run))

    @routes.get("/networks/{name}/profiles")
    def profiles_of_network(name: str) -> dict[str, Any]:
        """The profiles of a network, the newest first, and the jobs that measure it."""
        return listed(studio, of_network(name))

    _add_profile(routes, studio, "/runs/{name:path}", of_run, "run")
    _add_profile(routes, studio, "/networks/{name}", of_network, "network")
    return routes


def _add_profile(
    routes: APIRouter, studio: Studio, address: str, thing_of: Callable[[str], ProfiledThing], what: str
) -> None:
    """The routes of one profile, the same for runs and networks."""

    @routes.get(f"{address}/profiles/{{id}}", name=f"profile_of_{what}")
    def read(name: str, id: str) -> dict[str, Any]:
        """All figures of a profile: layers, kernels that lose time, memory."""
        found = one(studio, thing_of(name), id)
        figures: dict[str, Any] = json.loads(readable(found).to_json())
        return figures

    @routes.get(f"{address}/profiles/{{id}}/trace", name=f"trace_of_{what}")
    def trace(name: str, id: str) -> FileResponse:
        """The trace of a profile, for https://ui.perfetto.dev or chrome://tracing."""
        found = one(studio, thing_of(name), id)
        if not found.trace.is_file():
            raise HTTPException(404, f"the trace of {id} is gone")
        return FileResponse(found.trace, media_type="application/json", filename=f"{id}.trace.json")

    @routes.get(f"{address}/profiles/{{id}}/report", name=f"report_of_{what}")
    def report(name: str, id: str) -> HTMLResponse:
        """A page that stands by itself, to send to somebody."""
        record = readable(one(studio, thing_of(name), id))
        return HTMLResponse(
            report_page({record.subject: record}),
            headers={"Content-Disposition": f'attachment; filename="{id}.html"'},
        )

    @routes.delete(f"{address}/profiles/{{id}}", name=f"delete_profile_of_{what}")
    def delete(name: str, id: str) -> dict[str, str]:
        """Delete a profile and its trace."""
        delete_profile(one(studio, thing_of(name), id))
        studio.feed.refresh_soon()
        return {"message": "The measurement is deleted."}

    @routes.post(f"{address}/energy", name=f"compare_energy_of_{what}")
    def compare(name: str, request: Request, wanted: NewEnergy | None = None) -> dict[str, Any]:
        """Compare the modelled energy of its forms: float32, float16, int8, fixed point, sparse; also of its compressions."""
        thing = thing_of(name)
        others = compressions_of(studio, name) if thing.is_run else []
        given, owner = (wanted or NewEnergy()).model_dump(), submitter(studio, request)
        job = submit_energy(studio.queue, thing.of, given, owner, others)
        studio.feed.refresh_soon()
        return {
            "number": job.number,
            "message": f"The forms of {thing.name} are compared as soon as there is room.",
        }

    @routes.get(f"{address}/energy", name=f"energy_of_{what}")
    def energy(name: str) -> list[dict[str, Any]]:
        """The comparisons of its forms, the newest first: joules of each by cause and by layer."""
        return [
            {"device": one.device, "batch": one.batch, "density": one.density, "made": one.made, **one.found.to_dict()}
            for one in stored_energies(thing_of(name).folder)
        ]  # fmt: skip


def compressions_of(studio: Studio, run: str) -> list[str]:
    """The folders of the finished compressions of a run, those that are newest first."""
    views = studio.compressions.of(find_row(studio, run), studio.feed.snapshot)
    rows = [studio.index.get(one.run) for one in views if one.run is not None and one.status == FINISHED]
    return [str(row.folder) for row in rows if row is not None and row.id != run][:MOST_COMPRESSIONS]


def known_network(studio: Studio, name: str) -> str:
    """The name of a network that there is."""
    store = NetworkStore(studio.config.runs)
    if name not in FACTS and name not in store.names() and all(one.name != name for one in store.imported()):
        raise HTTPException(404, f"there is no network {name}")
    return name


def start(studio: Studio, thing: ProfiledThing, wanted: NewProfile, owner: str) -> dict[str, Any]:
    given = {name: value for name, value in wanted.model_dump().items() if value is not None}
    job = submit_profile(studio.queue, thing.of, given, owner)
    studio.feed.refresh_soon()
    return {"number": job.number, "message": f"{thing.name} is measured as soon as there is room."}


def one(studio: Studio, thing: ProfiledThing, id: str) -> StoredProfile:
    if id not in profile_ids(thing.folder):
        raise HTTPException(404, f"there is no profile {id} of {thing.name}")
    return next(stored for stored in studio.profiles.of(thing) if stored.id == id)


def readable(found: StoredProfile) -> ProfileRecord:
    if found.record is None:
        raise HTTPException(409, found.problem)
    return found.record


def listed(studio: Studio, thing: ProfiledThing) -> dict[str, Any]:
    stored = [
        {"id": found.id, "problem": found.problem, **(found.record.summary() if found.record else {"made": found.made})}
        for found in studio.profiles.of(thing)
    ]
    jobs = [
        {"job": found.job, "state": found.state, "why": found.why, "doing": found.doing, "share": found.share}
        for found in measurements(thing, studio.feed.snapshot)
    ]
    return {"profiles": stored, "jobs": jobs}
