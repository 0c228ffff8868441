"""Datasets: list, create, look at their images, change them as new versions, delete."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Query, Request
from fastapi.responses import Response

from ...data.changes import DatasetChanges
from ...data.scan import SourceScan
from ...errors import UserError
from ...hints import nearest
from ...jobs.datasets.create import submit_dataset
from ...jobs.queue.kinds import DATASET_VERSION
from ...jobs.queue.record import CANCELLED, STOPPED
from ..library.dataset_form import DEFAULTS
from ..library.dataset_images import ImageFilter, failures, picture
from ..library.datasets import DatasetRow, VersionRow
from ..ui.context import Studio
from .submission import submitter

FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # addresses hold the digest of what they show
SOON = {"Cache-Control": "private, max-age=300"}


def router(studio: Studio) -> APIRouter:
    """The routes below /datasets."""
    routes = APIRouter(prefix="/datasets", tags=["datasets"])
    _add_creation(routes, studio)
    _add_reading(routes, studio)
    _add_changes(routes, studio)
    return routes


def _add_creation(routes: APIRouter, studio: Studio) -> None:
    """The routes that list datasets and create one."""
    library = studio.datasets

    @routes.get("")
    def datasets() -> list[dict[str, Any]]:
        """All datasets with their versions."""
        return [_facts(studio, row) for row in library.index.refresh()]

    @routes.post("")
    def create(request: Request, given: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        """Create a dataset: the fields of the form, such as {"kind": "folder", "source": "photos", "name": "flowers", "size": "64"}."""
        for field in given.keys() - DEFAULTS.keys():
            raise UserError(
                "studio", f"a field of the form is required, got {field!r}. {nearest(field, list(DEFAULTS))}"
            )
        settings = library.forms.settings({n: str(v) for n, v in given.items() if v is not None})
        job = submit_dataset(studio.queue, settings, submitter(studio, request))
        studio.feed.refresh_soon()
        library.index.refresh()
        return {"number": job.number, "name": job.settings["name"], "open": f"/datasets/{job.settings['name']}"}

    @routes.get("/scan")
    def scan(source: str, labels: str = "class") -> dict[str, Any]:
        """What a source on the server holds: images, classes, sizes; nothing is created."""
        return _scan_facts(library.forms.scan(studio.paths.path(source), labels))

    @routes.get("/preview")
    def preview(path: str, size: str = "128", resize: str = "crop", colour: str = "rgb") -> Response:
        """An image file under one of the resize modes, as a dataset would hold it."""
        content, kind = library.forms.preview(studio.paths.path(path), size, resize, colour)
        return Response(content, media_type=kind, headers=SOON)


def _add_reading(routes: APIRouter, studio: Studio) -> None:
    """The routes that show a dataset and its images."""
    library = studio.datasets

    @routes.get("/{name}")
    def one(name: str) -> dict[str, Any]:
        """One dataset, as it is now: who saw its job end finds the version that it made."""
        library.index.refresh()
        return _facts(studio, _find(studio, name))

    @routes.get("/{name}/{version}/images")
    def images(
        name: str, version: str, split: str = "", of_class: Annotated[str, Query(alias="class")] = "", words: str = "",
        flagged: bool = False, start: Annotated[int, Query(ge=0)] = 0, most: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> dict[str, Any]:  # fmt: skip
        """Images by split, class, words of their names, and flags."""
        found, total = library.opened(name, version).find(ImageFilter(split, of_class, words, flagged), start, most)
        return {"total": total, "images": [vars(ref) for ref in found]}

    @routes.get("/{name}/{version}/images/{split}/{row}")
    def image(name: str, version: str, split: str, row: int, side: int = 128) -> Response:
        """One image as a picture."""
        content, kind = library.opened(name, version).thumbnail(split, row, side)
        return Response(content, media_type=kind, headers=FOREVER)

    @routes.get("/{name}/{version}/mean")
    def mean(name: str, version: str) -> Response:
        """The mean image of training."""
        content, kind = picture(library.opened(name, version).pixels.mean_image, 256)
        return Response(content, media_type=kind, headers=FOREVER)

    @routes.get("/{name}/{version}/pixels")
    def pixels(name: str, version: str) -> dict[str, Any]:
        """Statistics of pixels: mean and deviation of each channel, and histograms of a sample."""
        opened = library.opened(name, version)
        return {
            "mean": opened.train.mean, "std": opened.train.std, "histogram": opened.pixels.histogram.tolist(),
            "images": opened.pixels.images,
        }  # fmt: skip

    @routes.get("/{name}/{version}/failed")
    def failed(name: str, version: str) -> list[dict[str, str]]:
        """Files that are not in the dataset, with the reason."""
        return [
            {"path": path, "reason": reason} for path, reason in failures(_find_version(studio, name, version).folder)
        ]


def _add_changes(routes: APIRouter, studio: Studio) -> None:
    """The routes that make new versions of a dataset, or delete it."""
    library = studio.datasets

    @routes.post("/{name}/{version}/changes")
    def change(request: Request, name: str, version: str, given: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        """Make a new version: {"remove": {"train": [3]}, "relabel": {"train": {"5": "rose"}}, "rename": {"bellis": "daisy"}, "add": PATH}."""
        row = _find_version(studio, name, version)
        if "upload" in given:
            given = {**given, "add": str(library.uploads.source(str(given["upload"])))}
            del given["upload"]
        elif given.get("add"):
            given = {**given, "add": str(studio.paths.path(str(given["add"])))}
        changes = DatasetChanges.from_json(given).with_merges(row.classes)
        changes.check(row.splits, row.classes, row.labels)
        made = add_version(studio, request, name, row, changes)
        return {**made, "message": f"A new version is made: {changes.summary()}.", "open": f"/datasets/{name}"}

    @routes.delete("/{name}")
    def delete(name: str, confirmed: bool = False) -> dict[str, Any]:
        """Delete a dataset with all versions. Refused while runs learned from it, unless it is confirmed."""
        row = _find(studio, name)
        _check_unused(studio, row, None, confirmed)
        if row.state == "making":
            raise UserError("studio", f"{name} is being made. Stop job {row.jobs[0].number} first.")
        for job in row.jobs:  # attempts that failed: they are not made again
            studio.queue.job(job.number).set(STOPPED, CANCELLED)
        if row.folder.exists():
            shutil.rmtree(row.folder)
        _forget(studio)
        return {"message": f"{name} was deleted.", "open": "/datasets"}

    @routes.delete("/{name}/{version}")
    def delete_version(name: str, version: str, confirmed: bool = False) -> dict[str, Any]:
        """Delete one version of a dataset."""
        row, found = _find(studio, name), _find_version(studio, name, version)
        if len(row.versions) < 2:
            raise UserError("studio", f"{version} is the only version of {name}. Delete the dataset.")
        _check_unused(studio, row, version, confirmed)
        shutil.rmtree(found.folder)
        _forget(studio)
        return {"message": f"{name} {version} was deleted.", "open": f"/datasets/{name}"}


def _find(studio: Studio, name: str) -> DatasetRow:
    row = studio.datasets.index.get(name)
    if row is None:
        raise HTTPException(404, f"there is no dataset {name}")
    return row


def _find_version(studio: Studio, name: str, version: str) -> VersionRow:
    found = _find(studio, name).version(version)
    if found is None:
        raise HTTPException(404, f"there is no version {version} of {name}")
    return found


def add_version(
    studio: Studio, request: Request, name: str, row: VersionRow, changes: DatasetChanges
) -> dict[str, Any]:
    """Add the job that makes a new version; its number."""
    settings = {"folder": str(row.folder), "changes": changes.as_json(), "name": name}
    job = studio.queue.add(settings, DATASET_VERSION, owner=submitter(studio, request))
    studio.feed.refresh_soon()
    return {"number": job.number}


def _forget(studio: Studio) -> None:
    studio.datasets.index.refresh()
    studio.feed.refresh_soon()


def _check_unused(studio: Studio, row: DatasetRow, version: str | None, confirmed: bool) -> None:
    runs = [run.name for run in row.used_by(studio.index.rows(), version)]
    if runs and not confirmed:
        names = ", ".join(runs[:5]) + (f" and {len(runs) - 5} more" if len(runs) > 5 else "")
        raise UserError(
            "studio",
            f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} learned from it: {names}. They cannot be resumed or evaluated without it. "
            "Confirm to delete it anyway.",
        )


def _facts(studio: Studio, row: DatasetRow) -> dict[str, Any]:
    return {
        "name": row.name, "state": row.state, "folder": str(row.folder),
        "versions": [_version_facts(one) for one in row.versions],
        "jobs": [{**vars(job), "settings": dict(job.settings)} for job in row.jobs], "used_by": [run.id for run in row.used_by(studio.index.rows())],
    }  # fmt: skip


def _version_facts(one: VersionRow) -> dict[str, Any]:
    about = one.about
    return {
        "name": one.name, "splits": one.splits, "images": one.images, "classes": one.classes, "counts": about.get("counts", {}),
        "shape": about.get("shape"), "store": about.get("store"), "labels": one.labels, "mean": about.get("mean"),
        "std": about.get("std"), "failed": one.failed, "bytes": one.nbytes, "created": one.created, "parent": one.parent,
        "changes": one.text, "settings": about.get("settings", {}), "problem": one.problem,
    }  # fmt: skip


def _scan_facts(found: SourceScan) -> dict[str, Any]:
    return {
        "images": found.images, "classes": found.classes, "splits": found.splits, "labels": found.labels,
        "complete": found.complete, "unreadable": [{"path": p, "reason": r} for p, r in found.unreadable],
        "looked_at": found.looked_at, "sizes": found.size_range,
    }  # fmt: skip
