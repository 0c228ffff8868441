"""Deleted runs go to `.trash` below the folder of runs, from where they can be restored until the trash is emptied.

Each deletion is a folder with the runs at the places that they had: `.trash/20260304-123205-1/classify/digits-lenet5-1`.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from ..errors import RunError, UserError
from ..locks import writer_of
from ..records import dataclass
from .find import run_folders

FOLDER = ".trash"
_ENTRY = re.compile(r"\d{8}-\d{6}-\d+")


@dataclass(frozen=True)
class TrashEntry:
    """Runs that were deleted together."""

    id: str
    runs: tuple[str, ...]  # their places below the folder of runs


def delete_runs(root: Path, folders: Sequence[Path]) -> TrashEntry:
    """Move runs to the trash. If one of them is running, or is no run, none is moved."""
    names = [_name(root, folder) for folder in folders]
    for folder in folders:
        if (writer := writer_of(folder)) is not None:
            raise UserError(
                "runs", f"a run that has ended is required, got {folder.name}, which {writer} writes to. Stop it first."
            )
    entry = _new_entry(root)
    for folder, name in zip(folders, names, strict=True):
        _move(folder, entry / name)
    return TrashEntry(entry.name, tuple(names))


def restore_runs(root: Path, entry: str) -> TrashEntry:
    """Move the runs of a deletion back to where they were."""
    folder = root / FOLDER / entry
    if not _ENTRY.fullmatch(entry) or not folder.is_dir():
        raise UserError("runs", f"there is nothing called {entry} in the trash. weft runs trash lists it.")
    found = run_folders(folder)
    taken = [one for one in found if (root / one.relative_to(folder)).exists()]
    if taken:
        raise UserError("runs", f"{taken[0].name} cannot be restored: a new run has its name. Rename that one first.")
    names = [one.relative_to(folder).as_posix() for one in found]
    for one, name in zip(found, names, strict=True):
        _move(one, root / name)
    shutil.rmtree(folder)
    return TrashEntry(entry, tuple(names))


def trash_entries(root: Path) -> list[TrashEntry]:
    """What is in the trash, the last deletion first."""
    folders = [path for path in (root / FOLDER).glob("*") if _ENTRY.fullmatch(path.name)]
    return [
        TrashEntry(path.name, tuple(one.relative_to(path).as_posix() for one in run_folders(path)))
        for path in sorted(folders, reverse=True)
    ]


def empty_trash(root: Path) -> int:
    """Delete what is in the trash for good; how many runs that were."""
    found = trash_entries(root)
    for entry in found:
        shutil.rmtree(root / FOLDER / entry.id, ignore_errors=True)
    return sum(len(entry.runs) for entry in found)


def _name(root: Path, folder: Path) -> str:
    """The place of a run below the folder of runs."""
    try:
        name = folder.resolve().relative_to(root.resolve())
    except ValueError:
        raise UserError("runs", f"a run below {root} is required, got {folder}.") from None
    if not (folder / "args.yaml").is_file() or name.parts[:1] in ((), (FOLDER,)):
        raise UserError("runs", f"{folder} is no folder of a run.")
    return name.as_posix()


def _new_entry(root: Path) -> Path:
    stamp, number = time.strftime("%Y%m%d-%H%M%S"), 1
    while True:
        try:
            made = root / FOLDER / f"{stamp}-{number}"
            made.mkdir(parents=True)
            return made
        except FileExistsError:
            number += 1
        except OSError as error:
            raise RunError("runs", f"the trash in {root} cannot be written to: {error.strerror or error}.") from error


def _move(source: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    except OSError as error:
        raise RunError("runs", f"{source} cannot be moved: {error.strerror or error}.") from error
