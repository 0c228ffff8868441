"""The networks that can be used: those of runs that have weights, and files of networks that were imported."""

from __future__ import annotations

from pathlib import Path

from ...jobs.definitions import IMPORTED, SAVED
from ...jobs.network_store import PROGRAMS
from ...records import dataclass
from .runs import RunIndex, RunRow

CHECKPOINTS = ("best", "last")  # of a run that can be chosen to classify with


@dataclass(frozen=True)
class UsableNetwork:
    """A network by the name that pages and the API use: that of its run (which has a /), or of an imported network."""

    id: str
    path: Path  # the folder of the run, or the file
    row: RunRow | None = None
    checkpoints: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it is called, without the folder of its run."""
        return self.path.name if self.row is not None else self.id

    @property
    def is_for_text(self) -> bool:
        """Whether it continues text; of files that is not known before they are loaded."""
        return self.row is not None and self.path.parent.name == "text"  # the folder of a task


def usable_networks(index: RunIndex) -> list[UsableNetwork]:
    """All of them: those of runs, the newest first, then imported files."""
    return [*(found for row in index.rows() if (found := _of_run(row)).checkpoints), *_imported(index.root)]


def usable_network(index: RunIndex, name: str) -> UsableNetwork | None:
    """A network by its id; a run that has no weights yet is found too."""
    row = index.get(name)
    if row is not None:
        return _of_run(row)
    return next((one for one in _imported(index.root) if one.id == name), None)


def network_id(root: Path, path: Path) -> str:
    """The name of a network by its path below the folder of runs: that of its run, or of the folder of an imported file."""
    return path.parent.name if path.suffix in PROGRAMS else path.relative_to(root).as_posix()


def _of_run(row: RunRow) -> UsableNetwork:
    weights = row.folder / "weights"
    return UsableNetwork(
        row.id, row.folder, row, tuple(one for one in CHECKPOINTS if (weights / f"{one}.safetensors").exists())
    )


def _imported(root: Path) -> list[UsableNetwork]:
    found = sorted((root / SAVED / IMPORTED).glob("[!.]*/*"))  # others are being imported
    return [
        UsableNetwork(network_id(root, path), path)
        for path in found
        if path.suffix in PROGRAMS and path.is_file() and not path.is_symlink()
    ]
