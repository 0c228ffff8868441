"""How a job is scheduled: `schedule.json` in its folder. Unlike the settings it changes: people hold it and set its priority, the runner notes where
it runs. Any process may change it; a damaged file counts as missing, so that the job still runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...records import dataclass
from .locked_file import change_file
from .needs import PRIORITIES

FILE = "schedule.json"
REMOTE = "ray:"  # how slots on a cluster begin; then comes the node


@dataclass(frozen=True)
class JobSchedule:
    """Priority and hold of a job, and where it runs or ran last."""

    priority: int = 0  # a value of PRIORITIES
    held: bool = False
    held_by: str = ""
    held_at: float = 0.0
    losses: int = 0  # times that its process was killed since somebody started it
    slots: tuple[str, ...] = ()
    started: float | None = None
    memory: int | None = None  # the most bytes of a GPU that it was seen to use

    @property
    def priority_name(self) -> str:
        return next(name for name, value in PRIORITIES.items() if value == self.priority)

    @property
    def is_remote(self) -> bool:
        """Whether it runs on a node of a cluster; the process that holds its lock only watches it."""
        return bool(self.slots) and self.slots[0].startswith(REMOTE)


def read_schedule(folder: Path) -> JobSchedule:
    """The schedule of a job."""
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        return _checked(found)
    except (OSError, ValueError, TypeError):
        return JobSchedule()


def change_schedule(folder: Path, change: Callable[[JobSchedule], JobSchedule]) -> JobSchedule:
    """Replace the schedule of a job by what `change` makes of it. Changes of several processes at a time do not get lost."""
    return change_file(folder / FILE, folder / ".schedule.lock", read_schedule, change)


def priority_of(name: str) -> int:
    """The value of a priority."""
    if name not in PRIORITIES:
        raise UserError("jobs", f"a priority is {', '.join(PRIORITIES)}, got {name!r}.")
    return PRIORITIES[name]


def _checked(found: Any) -> JobSchedule:
    known = {field.name for field in fields(JobSchedule)}
    if not isinstance(found, dict) or not found.keys() <= known:
        raise ValueError("unknown names")
    made = replace(JobSchedule(), **{**found, "slots": tuple(found.get("slots", ()))})
    numbers = (made.priority, made.losses, made.held_at, made.started or 0.0, made.memory or 0)
    whole = all(isinstance(one, int | float) and one == one for one in numbers) and isinstance(made.held, bool)
    if not whole or made.priority not in PRIORITIES.values() or not all(isinstance(one, str) for one in made.slots):
        raise ValueError("values of other types are required")
    return made
