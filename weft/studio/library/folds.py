"""The cross-validations of a folder of runs: the runs of their folds, and mean and deviation of each metric over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import WeftError
from ...jobs.cross_validation import FOLDER, STATE, read_folds
from ...jobs.fold_results import TABLE
from ...jobs.record import RUNNING, STOPPED
from ...locks import lock_holder
from .changes import stamp
from .runs import FINISHED, RunRow


@dataclass(frozen=True)
class FoldsSnapshot:
    """A cross-validation at one time."""

    name: str
    status: str  # running, stopped, finished
    folder: Path
    folds: int
    model: str
    data: str
    examples: int
    runs: tuple[str, ...]  # names of the runs of the folds in the index
    metrics: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # values, mean and std, when all folds are done
    created: float = 0.0

    @property
    def table(self) -> Path | None:
        """Predictions for all training examples, when all folds are done."""
        path = self.folder / TABLE
        return path if path.is_file() else None

    def done(self, rows: Sequence[RunRow | None]) -> int:
        """How many folds have ended."""
        return sum(row is not None and row.status == FINISHED for row in rows)


class FoldsIndex:
    """Finds the cross-validations below a folder of runs. Files are read again only when they have changed."""

    def __init__(self, runs: Path) -> None:
        self.folder = runs / FOLDER
        self._known: dict[Path, tuple[object, dict[str, Any] | None]] = {}

    def refresh(self) -> tuple[FoldsSnapshot, ...]:
        """All cross-validations, the newest first."""
        found = [self._view(path.parent) for path in self.folder.glob(f"*/{STATE}")]
        return tuple(sorted((one for one in found if one is not None), key=lambda one: -one.created))

    def _view(self, folder: Path) -> FoldsSnapshot | None:
        seen = stamp(folder / STATE)
        known = self._known.get(folder)
        if known is None or known[0] != seen:
            known = self._known[folder] = seen, _read(folder)
        state = known[1]
        if state is None:
            return None
        status = FINISHED if state["done"] else RUNNING if lock_holder(folder) is not None else STOPPED
        runs = tuple(f"{state['task']}/{state['name']}-fold{k}" for k in range(1, state["folds"] + 1))
        data = Path(str(state["settings"].get("data") or "")).name
        created = (seen[0] or (0, 0))[0] / 1e9
        return FoldsSnapshot(
            folder.name, status, folder, state["folds"], str(state.get("model") or ""), data, int(state.get("examples") or 0), runs,
            dict(sorted((state.get("metrics") or {}).items(), key=lambda one: "loss" in one[0])), created,
        )  # fmt: skip


def _read(folder: Path) -> dict[str, Any] | None:
    """What folds.json says; None if it is damaged, or of a newer weft."""
    try:
        return read_folds(folder)
    except WeftError:
        return None
