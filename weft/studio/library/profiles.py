"""The profiles of runs and networks: those on disk, and the jobs of the queue that measure."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...insight.call_timeline import CallTimeline, call_timeline
from ...insight.profile_record import ProfileRecord
from ...jobs.events import latest
from ...jobs.profiles.store import StoredProfile, network_profiles, profile_ids, run_profiles, stored_profile
from ...jobs.queue.kinds import PROFILE
from ...jobs.queue.record import FAILED, RUNNING
from ...jobs.queue.view import JobView
from ...records import dataclass
from .activity import RECENT
from .changes import stamp
from .feed import Snapshot
from .runs import RunRow

REMEMBERED = 16  # timelines


@dataclass(frozen=True)
class ProfiledThing:
    """A run or a network, whose profiles are kept in a folder. `api` is its path below /api/v1."""

    name: str
    folder: Path
    api: str
    of: Mapping[str, str]  # as the settings of a job say it

    @property
    def is_run(self) -> bool:
        return "run" in self.of


def profiled_run(row: RunRow) -> ProfiledThing:
    return ProfiledThing(
        row.name, run_profiles(row.folder), f"/runs/{quote(row.id)}/profiles", {"run": str(row.folder)}
    )


def profiled_network(runs: Path, name: str) -> ProfiledThing:
    return ProfiledThing(name, network_profiles(runs, name), f"/networks/{quote(name)}/profiles", {"network": name})


@dataclass(frozen=True)
class MeasurementView:
    """A job that measures, at one time: it waits, runs or has failed."""

    job: int
    state: str
    settings: Mapping[str, Any]
    why: str = ""
    doing: str = ""
    share: float = 0.0


class Profiles:
    """Reads profiles; files are read once, as they never change."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str], tuple[object, StoredProfile]] = {}
        self._timelines: OrderedDict[Path, tuple[object, CallTimeline | None]] = OrderedDict()

    def of(self, thing: ProfiledThing) -> list[StoredProfile]:
        """The profiles of a run or a network, the newest first."""
        return [self._one(thing.folder, one) for one in profile_ids(thing.folder)]

    def _one(self, folder: Path, id: str) -> StoredProfile:
        seen = stamp(folder / f"{id}.json")
        known = self._known.get((folder, id))
        if known is None or known[0] != seen:
            known = self._known[folder, id] = seen, stored_profile(folder, id)
        return known[1]

    def timeline(self, stored: StoredProfile) -> CallTimeline | None:
        """One call of the trace of a profile; None if there is no trace, or one that cannot be read. The last few are remembered."""
        seen, known = stamp(stored.trace), self._timelines.get(stored.trace)
        if known is None or known[0] != seen:
            known = self._timelines[stored.trace] = seen, _timeline(stored.trace)
            if len(self._timelines) > REMEMBERED:
                self._timelines.popitem(last=False)
        return known[1]


def _timeline(path: Path) -> CallTimeline | None:
    try:
        return call_timeline(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # gone, or damaged
        return None


def measurements(thing: ProfiledThing, snapshot: Snapshot, kind: str = PROFILE) -> list[MeasurementView]:
    """The jobs that measure it, the newest first: those that wait and run, and the last one if it has failed lately."""
    jobs = [one for one in reversed(snapshot.queue.jobs) if one.kind == kind and _is_of(one, thing)]
    open_ = [one for one in jobs if not one.state.has_ended]
    failed = [one for one in jobs[:1] if one.state.state == FAILED and time.time() - one.state.time < RECENT]
    return [_view(one) for one in (*open_, *failed)]


def _is_of(job: JobView, thing: ProfiledThing) -> bool:
    return all(job.settings.get(name) == value for name, value in thing.of.items())


def _view(job: JobView) -> MeasurementView:
    doing, share = _doing(job) if job.state.state == RUNNING else ("", 0.0)
    return MeasurementView(job.number, job.state.state, job.settings, job.state.why, doing, share)


def _doing(job: JobView) -> tuple[str, float]:
    event = latest(job.record.folder, "activity", "progress")
    if event is None:
        return "", 0.0
    if event.type == "activity":
        return str(event["text"]), 0.0
    done, total = event["done"], event["total"]
    return f"{event['what']}, {done} of {total}", done / max(1, total)


def settings_of(record: ProfileRecord) -> dict[str, str | int]:
    """How a profile was measured. Profiles with the same settings can be compared."""
    return {"device": record.device, "batch": record.batch, "what": record.what}


def alike(found: Sequence[StoredProfile], settings: Mapping[str, str | int]) -> StoredProfile | None:
    """The newest profile with these settings."""
    fits = (one for one in found if one.record is not None and settings.items() <= settings_of(one.record).items())
    return next(fits, None)


def newest(found: Sequence[StoredProfile]) -> StoredProfile | None:
    """The newest profile that can be read."""
    return next((one for one in found if one.record is not None), None)
