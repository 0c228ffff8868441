"""What earlier jobs took, to forecast the next ones: seconds an epoch and GPU memory of trainings with the same data, network and batch.

The file is `history.json` of the queue. The runner alone writes it; a damaged file only loses forecasts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...io.files import replace_file
from ...records import dataclass
from .kinds import TRAIN

FILE = "history.json"
MARGIN = 1.1  # of a forecast of memory: what other jobs must leave free, relative to what was measured or computed
MOST = 2000  # entries; the oldest make room
KEYS = (
    "data",
    "model",
    "size",
    "batch",
    "precision",
    "memory",
    "accumulate",
    "augment",
    "hidden",
    "layers",
    "optimizer",
)


@dataclass(frozen=True)
class PastUse:
    """What jobs of one sort took, each the last one measured."""

    seconds: float | None = None  # an epoch of a training, all of another job
    memory: int | None = None  # bytes of one GPU


def past_use(folder: Path, kind: str, settings: Mapping[str, Any]) -> PastUse:
    """What the last job like this took."""
    return _read(folder).get(_key(kind, settings), PastUse())


def record_use(folder: Path, kind: str, settings: Mapping[str, Any], seconds: float | None, memory: int | None) -> None:
    """Record what a job took; what was not measured stays as it was."""
    found = _read(folder)
    before = found.pop(_key(kind, settings), PastUse())
    found[_key(kind, settings)] = PastUse(
        before.seconds if seconds is None else round(seconds, 3), before.memory if memory is None else memory
    )
    kept = {key: asdict(use) for key, use in list(found.items())[-MOST:]}
    replace_file(folder / FILE, [json.dumps(kept).encode()], "jobs")


def _key(kind: str, settings: Mapping[str, Any]) -> str:
    device = str(settings.get("device") or "").partition(":")[0]
    names = KEYS if kind == TRAIN else tuple(sorted(settings))
    return json.dumps([kind, device, *(settings.get(name) for name in names)], default=str)


def _read(folder: Path) -> dict[str, PastUse]:
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        return {key: PastUse(*_numbers(value)) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _numbers(value: Any) -> tuple[float | None, int | None]:
    seconds, memory = value.get("seconds"), value.get("memory")
    if not isinstance(seconds, int | float | None) or not isinstance(memory, int | None):
        raise ValueError("numbers are required")
    return seconds, memory
