"""The data doctor: examine a version of a dataset, decide on what it found, save that as a new version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request
from fastapi.responses import Response

from ...errors import UserError
from ..library.doctor import (
    decide_on,
    difference_of,
    findings_csv,
    picture_of,
    read_view,
    report_and_decisions,
    save_version,
    start_examination,
    version_folder,
)  # fmt: skip
from ..ui.context import Studio
from .submission import submitter

KEPT = {"Cache-Control": "private, max-age=3600"}


def router(studio: Studio) -> APIRouter:
    """The routes below /datasets/NAME/versions/N/doctor."""
    routes = APIRouter(prefix="/datasets/{name}/versions/{version}/doctor", tags=["datasets"])

    def find(name: str, version: str) -> Path:
        try:
            return version_folder(studio.config.dataset_folder, name, version)
        except UserError as error:
            raise HTTPException(404, error.message) from None

    @routes.get("")
    def report(name: str, version: str) -> dict[str, Any]:
        """The report, the decisions, and the job that examines the dataset if there is one."""
        view = read_view(studio.queue, name, find(name, version))
        return {
            "report": None if view.report is None else view.report.as_json(),
            "decisions": dict(view.decisions.made),
            "job": None if view.job is None else vars(view.job),
        }

    @routes.post("")
    def examine(
        request: Request, name: str, version: str, given: Annotated[dict[str, Any] | None, Body()] = None
    ) -> dict[str, Any]:
        """Examine the dataset: {"again": true} forgets the last report, {"features": RUN} tells images apart by its network."""
        wanted = given or {}
        features = wanted.get("features") or None
        if features is not None and studio.index.get(str(features)) is None:
            raise UserError("studio", f"there is no run {features}.")
        run = None if features is None else str(studio.index.root / str(features))
        folder, owner = find(name, version), submitter(studio, request)
        job = start_examination(studio.queue, name, folder, bool(wanted.get("again")), run, owner)
        studio.feed.refresh_soon()
        return {"number": job.number, "message": "The data doctor starts as soon as there is room."}

    @routes.put("/decisions")
    def decide(name: str, version: str, given: Annotated[dict[str, str | None], Body()]) -> dict[str, Any]:
        """Decide on findings by their id: keep, remove, move, relabel:CLASS; null takes a decision back."""
        return {"decisions": dict(decide_on(find(name, version), given).made)}

    @routes.post("/save")
    def save(request: Request, name: str, version: str) -> dict[str, Any]:
        """Make the decisions a new version, as a job of the queue."""
        folder = find(name, version)
        job = save_version(studio.queue, name, folder, submitter(studio, request))
        studio.feed.refresh_soon()
        return {"number": job.number, "message": f"{name} gets a new version as soon as there is room."}

    @routes.get("/findings.csv")
    def table(name: str, version: str) -> Response:
        """All findings, to download."""
        folder = find(name, version)
        headers = {"Content-Disposition": f'attachment; filename="doctor-{folder.name}.csv"'}
        return Response(findings_csv(folder), media_type="text/csv", headers=headers)

    @routes.get("/images/{split}/{row}.png")
    def image(name: str, version: str, split: str, row: int) -> Response:
        """An image of the dataset."""
        return Response(picture_of(find(name, version), split, row), media_type="image/png", headers=KEPT)

    @routes.get("/differences/{check}/{number}.png")
    def difference(name: str, version: str, check: str, number: int) -> Response:
        """Where the two images of a finding differ, four times as strong."""
        folder = find(name, version)
        result = report_and_decisions(folder)[0].result(check)
        if result is None or not 0 <= number < len(result.findings) or len(result.findings[number].images) < 2:
            raise HTTPException(404, f"there is no pair {number} of {check}")
        finding = result.findings[number]
        mirrored = bool(finding.facts.get("mirrored"))
        return Response(
            difference_of(folder, finding.images[0], finding.images[1], mirrored), media_type="image/png", headers=KEPT
        )

    return routes
