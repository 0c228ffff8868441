"""The job `energy`: the modelled energy of a run or a network in other number formats and forms, kept beside its profiles.

settings: see settings.py; also `against`, the folders of compressed runs that are compared unchanged
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import RunError
from ...insight.energy_comparison import EnergyComparison
from ...insight.energy_forms import FORMS
from ...io.files import replace_file
from ...records import dataclass
from ..events import Listener, Recorder, ignore_events
from ..queue.job_queue import JobQueue
from ..queue.kinds import ENERGY
from ..queue.record import JobRecord
from ..schema import validated
from .job import check_subject, profile_folder, subject_of, subject_title
from .report import ProfileOptions, compare_energy
from .settings import ENERGY_SETTINGS

BEGINNING = "energy-"  # of the names of files


@dataclass(frozen=True)
class StoredEnergy:
    """A comparison on disk: there is one for each device and batch."""

    device: str
    batch: int
    density: float
    made: float
    found: EnergyComparison


def submit_energy(
    queue: JobQueue, of: Mapping[str, str], given: Mapping[str, Any], owner: str = "", against: Sequence[str] = ()
) -> JobRecord:
    """Check the settings of a comparison of forms and add it to the queue. `of` is {"run": folder} or {"network": name}.

    >>> from tempfile import mkdtemp
    >>> submit_energy(JobQueue(mkdtemp()), {"network": "lenet5"}, {"batch": 1}).settings["name"]
    'Energy of lenet5'
    """
    settings = validated("energy", {**given, **of, "runs": str(queue.root)}, ENERGY_SETTINGS)
    check_subject(settings)
    name = f"Energy of {subject_title(settings)}"
    return queue.add({**settings, "name": name, "against": list(against)}, ENERGY, owner=owner)


def energy_job(settings: Mapping[str, Any], earlier: Path | None, listener: Listener = ignore_events) -> None:
    """The work of the job: compile every form, count it, and keep the comparison."""
    told = validated("energy", {name: settings[name] for name in ENERGY_SETTINGS if name in settings}, ENERGY_SETTINGS)
    check_subject(told)
    recorder = Recorder(listener)
    recorder.show("activity", text="compiling its forms")
    folders = [folder for folder in settings.get("against") or () if Path(folder).is_dir()]
    others = [replace(subject_of({**told, "run": one, "network": None}), title=Path(one).name) for one in folders]
    options = ProfileOptions(batches=(told["batch"],), device=told["device"])
    found = compare_energy([subject_of(told), *others], options, FORMS, told["density"])
    keep_energy(profile_folder(told), told, found)
    recorder.show("result", joules={form.name: form.joules for form in found.forms})


def keep_energy(folder: Path, settings: Mapping[str, Any], found: EnergyComparison) -> Path:
    """Write a comparison; an earlier one of the same device and batch is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    how = {name: settings[name] for name in ("device", "batch", "density")}
    path = folder / f"{BEGINNING}{str(how['device']).replace(':', '')}-b{how['batch']}.json"
    content = json.dumps({**how, "made": time.time(), "comparison": found.to_dict()})
    replace_file(path, [content.encode()], "energy")
    return path


def stored_energies(folder: Path) -> list[StoredEnergy]:
    """The comparisons in a folder, the newest first. Damaged ones are left out."""
    found = []
    for path in folder.glob(f"{BEGINNING}*.json"):
        try:
            known = json.loads(path.read_text("utf-8"))
            comparison = EnergyComparison.from_dict(known["comparison"])
            found.append(StoredEnergy(str(known["device"]), int(known["batch"]), float(known["density"]), float(known["made"]), comparison))  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, RunError):
            continue
    return sorted(found, key=lambda one: -one.made)
