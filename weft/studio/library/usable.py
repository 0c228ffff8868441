"""The networks that can be used: those of runs that have weights, and files of networks that were imported."""

from __future__ import annotations

from pathlib import Path

from ...records import dataclass
from .runs import RunIndex, RunRow

CHECKPOINTS = ("best", "last")  # of a run that can be chosen to classify with
IMPORTED = ".networks"  # below the folder of runs
FILES = (".weft", ".onnx")


@dataclass(frozen=True)
class UsableNetwork:
    """A network by the name that pages and the API use: that of its run, or its file below the folder of runs."""

    id: str
    path: Path  # the folder of the run, or the file
    row: RunRow | None = None
    checkpoints: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """That of the run or the file; of a file in a folder of its own (.networks/imported/NAME), that of the folder."""
        return self.path.parent.name if self.path.parts[-3:-2] == ("imported",) else self.path.name

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


def _of_run(row: RunRow) -> UsableNetwork:
    weights = row.folder / "weights"
    return UsableNetwork(
        row.id, row.folder, row, tuple(one for one in CHECKPOINTS if (weights / f"{one}.safetensors").exists())
    )


def _imported(root: Path) -> list[UsableNetwork]:
    found = (root / IMPORTED).glob("**/*") if (root / IMPORTED).is_dir() else ()
    return [
        UsableNetwork(path.relative_to(root).as_posix(), path)
        for path in sorted(found)
        if path.suffix.lower() in FILES and path.is_file() and not path.is_symlink()
    ]
