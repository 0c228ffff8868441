"""The state of the queue besides its jobs: the order that users gave it, and whether it is paused. Stored in `queue.json` of its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ...io.files import cannot_write
from ...records import dataclass
from .locked_file import change_file

FILE = "queue.json"


@dataclass(frozen=True)
class QueueOrder:
    """Numbers of jobs in the order they were moved into, the others follow by their numbers; whether no job starts at present."""

    order: tuple[int, ...] = ()
    paused: bool = False


def read_order(folder: Path) -> QueueOrder:
    """The order of the queue. A damaged file counts as missing: jobs then start in the order of their numbers."""
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        order, paused = found["order"], found["paused"]
        if not isinstance(order, list) or not all(type(one) is int for one in order) or not isinstance(paused, bool):
            raise ValueError("numbers are required")
        return QueueOrder(tuple(order), paused)
    except (OSError, ValueError, TypeError, KeyError):
        return QueueOrder()


def change_order(folder: Path, change: Callable[[QueueOrder], QueueOrder]) -> QueueOrder:
    """Replace the order by what `change` makes of it, one process at a time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write("jobs", folder / FILE, error) from error
    return change_file(folder / FILE, folder / ".queue.lock", read_order, change)
