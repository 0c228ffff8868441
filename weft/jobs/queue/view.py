"""All jobs of a queue, read from disk at once. Jobs that have ended are read once; afterwards only the time stamps of their files are checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...io.dataset_names import dataset_label, dataset_name
from ...locks import lock_holder
from ...records import dataclass
from .kinds import DOCTOR, EXPORT, FOLDS, TRAIN
from .needs import JobNeeds, needs_from_json, needs_of
from .order import QueueOrder, read_order
from .record import LOST, RUNNING, WAITING, JobRecord, State
from .schedule import JobSchedule, read_schedule

_TITLES = {DOCTOR: "Data doctor", FOLDS: "Cross-validation"}  # of kinds whose names read otherwise


@dataclass(frozen=True)
class JobView:
    """A job at one time."""

    record: JobRecord
    kind: str
    settings: Mapping[str, Any]
    owner: str
    needs: JobNeeds
    state: State
    schedule: JobSchedule

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def title(self) -> str:
        """What people call it: the name of its run, else what it does."""
        name = str(self.settings.get("name") or "")
        if self.kind != TRAIN:
            what = name or dataset_label(str(self.settings.get("data") or self.settings.get("run") or ""))
            kind = _TITLES.get(self.kind) or self.kind.replace("-", " ").capitalize()
            to = f" as {self.settings['to']}" if self.kind == EXPORT and "to" in self.settings else ""
            return what if what.startswith(kind) else f"{kind} {what}{to}".strip()
        if self.state.run:
            return Path(self.state.run).name
        made_of = [dataset_name(str(self.settings.get("data") or "")), Path(str(self.settings.get("model") or "")).name]
        return name or f"{'-'.join(filter(None, made_of)) or 'training'}, job {self.number}"

    @property
    def is_running(self) -> bool:
        """Whether a process works on it, or is just starting to."""
        return self.state.state == RUNNING or (
            self.state.state == WAITING and lock_holder(self.record.folder) is not None
        )


class QueueView:
    """Reads the jobs of a queue."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[int, tuple[str, Mapping[str, Any], str, JobNeeds]] = {}
        self._ended: dict[int, tuple[int, JobView]] = {}

    def jobs(self) -> list[JobView]:
        """All jobs, the oldest first."""
        found = []
        for number in sorted(_numbers(self.folder)):
            try:
                stamp = os.stat(self.folder / str(number) / "state.json").st_mtime_ns
            except OSError:
                continue  # somebody is just creating it
            before = self._ended.get(number)
            if before is not None and before[0] == stamp:
                found.append(before[1])
                continue
            view = self.read(JobRecord(self.folder / str(number)))
            if view.state.has_ended and view.state.why != LOST:
                self._ended[number] = stamp, view
            found.append(view)
        return found

    def order(self) -> QueueOrder:
        return read_order(self.folder)

    def waiting(self, jobs: list[JobView], order: QueueOrder) -> list[JobView]:
        """The jobs that wait, held ones too, in the order in which they start: by priority, then by their place."""
        place = {number: i for i, number in enumerate(order.order)}
        found = [one for one in jobs if one.state.state == WAITING]
        return sorted(found, key=lambda one: (-one.schedule.priority, place.get(one.number, len(place)), one.number))

    def read(self, record: JobRecord) -> JobView:
        """One job."""
        if record.number not in self._known:
            try:
                self._known[record.number] = _submitted(record)
            except RunError:  # a damaged job fails when it starts; its place in lists has no facts
                return JobView(record, TRAIN, {}, "", JobNeeds(), record.state, JobSchedule())
        return JobView(record, *self._known[record.number], record.state, read_schedule(record.folder))


def _submitted(record: JobRecord) -> tuple[str, Mapping[str, Any], str, JobNeeds]:
    """Kind, settings, owner and needs of a job."""
    found = record.submitted()
    kind, settings = str(found.get("kind", TRAIN)), found.get("settings")
    if not isinstance(settings, dict):
        raise RunError("jobs", f"{record.folder / 'job.json'} is damaged: 'settings' is missing.")
    needs = needs_from_json(found.get("needs"))
    return kind, settings, str(found.get("owner") or ""), needs if needs is not None else needs_of(kind, settings)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(entry.name) for entry in os.scandir(folder) if entry.name.isdigit()]
    except OSError:
        return []
