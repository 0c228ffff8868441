"""Starting trainings from programs, in whose name jobs are submitted, and the events of one job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request

from ...data.catalogue import known_names
from ...data.dataset_folder import is_dataset_folder, newest_version
from ...data.open import data_path
from ...errors import UserError
from ...hints import nearest
from ...io.json_values import json_value
from ...jobs.events import events_from
from ...jobs.queue.kinds import TRAIN
from ...jobs.queue.needs import needs_of
from ...jobs.queue.record import JobRecord
from ...jobs.queue.submission import submit
from ...jobs.recipes import RecipeStore
from ...jobs.settings import SETTINGS, setting_as_text
from ..access import current_user
from ..library.owners import check_disk_quota
from ..library.training_form import trainings_of
from ..store.accounts import LOCAL
from ..store.credentials import StudioUser
from ..ui.context import Studio
from .jobs import job_facts
from .models import JobEvents, JobFacts, NewJobs

OWN = ("runs", "cfg", "json", "exist_ok")  # decided by the server
PATHS = ("data", "weights", "from")  # may be names, or paths of the server


def router(studio: Studio) -> APIRouter:
    """Further routes below /jobs."""
    routes = APIRouter(prefix="/jobs", tags=["jobs"])

    @routes.post("", response_model=list[JobFacts])
    def create(asked: NewJobs, request: Request) -> list[dict[str, Any]]:
        """Add trainings to the queue. The settings are checked now."""
        made = add_trainings(studio, asked.settings, current_user(request), asked.priority, asked.gpus)
        return [job_facts(job) for job in made]

    @routes.get("/{number}/events", response_model=JobEvents)
    def events(
        number: int, start: Annotated[int, Query(ge=0, le=1 << 62, description="`next` of an earlier answer")] = 0
    ) -> Any:
        """The events of a job that are on disk: epochs, progress, messages, changes of state."""
        job = studio.queue.job(number)
        ended = job.state.has_ended  # asked first: what was written before it ended is still read
        found, place = events_from(job.folder, start)
        facts = [{"type": e.type, "time": e.time, **{k: json_value(v) for k, v in e.facts.items()}} for e in found]
        return {"events": facts, "next": place, "ended": ended}

    return routes


def add_trainings(
    studio: Studio, settings: Mapping[str, Any], user: StudioUser, priority: str = "normal", gpus: int = 1
) -> list[JobRecord]:
    """Check the settings of trainings and add them to the queue, in the name of a person and within their quota."""
    trainings = [confined(studio, one) for one in trainings_of(setting_texts(settings))]
    check_disk(studio, user)
    if len(trainings) > 1:  # all of them, or none
        studio.queue.check(needs_of(TRAIN, trainings[0], gpus), user.name, len(trainings))
    made = [submit(studio.queue, one, user.name, priority, gpus) for one in trainings]
    studio.feed.refresh_soon()
    return made


def submitter(studio: Studio, request: Request) -> str:
    """In whose name a request adds a job to the queue. Who has used up their disk space adds none."""
    user = current_user(request)
    check_disk(studio, user)
    return user.name


def check_disk(studio: Studio, user: StudioUser) -> None:
    """Refuse a job of a person who has used up their disk space."""
    if user.way != LOCAL:
        check_disk_quota(user.name, studio.store.quota(user.name), studio.queue.jobs())


def confined(studio: Studio, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of one training, whose paths are confined to the allowed folders. Datasets of the studio have names."""
    found = RecipeStore(studio.config.runs).expanded(settings)
    if found.get("data"):
        found["data"] = _dataset_path(studio, found["data"])
    for name in PATHS:
        text = found.get(name, "")
        there = data_path(text) is not None if name == "data" else Path(text).exists()
        is_path = "/" in text or text.startswith("~") or (text and there)
        if is_path and not _is_run(studio, text):
            found[name] = str(studio.paths.path(text))
    return found


def _dataset_path(studio: Studio, text: str) -> str:
    """A path or the name of a known dataset as it is; the folder of a dataset of the studio; others are rejected."""
    if "/" in text or text in known_names() or data_path(text) is not None:
        return text
    newest = newest_version(studio.config.dataset_folder / text)
    if not is_dataset_folder(newest):
        own = [row.name for row in studio.feed.snapshot.datasets]
        raise UserError("studio", f"there is no dataset {text!r}. {nearest(text, [*own, *known_names()])}")
    return str(newest)


def setting_texts(given: Mapping[str, Any]) -> dict[str, str]:
    """Settings as texts; what is no setting, or is decided by the server, is rejected."""
    for name in given:
        if name not in SETTINGS or name in OWN:
            raise UserError("studio", f"a setting of a training is required, got {name!r}.")
    return {name: setting_as_text(name, value) for name, value in given.items() if value is not None}


def _is_run(studio: Studio, text: str) -> bool:
    return studio.index.get(text) is not None
