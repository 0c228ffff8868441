"""Where the versions of a dataset are: datasets/NAME/v1, v2 and so on, or photos, photos-v2, photos-v3 beside each other."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..errors import RunError
from ..records import dataclass
from .changes import DatasetChanges
from .dataset_folder import describe, is_dataset_folder
from .staging import DESCRIPTION

_ALONE = re.compile(r"v([1-9]\d*)")
_SUFFIX = re.compile(r"(.+)-v([1-9]\d*)")


@dataclass(frozen=True)
class DatasetVersion:
    """A version of a dataset: what changed since its parent, and what it holds."""

    name: str
    number: int
    folder: str
    digest: str
    parent: int | None  # the number of the version it was made from
    changes: DatasetChanges | None
    text: str  # what changed, in one line
    counts: dict[str, int]
    classes: int
    created: float  # seconds since 1970

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "changes": None if self.changes is None else self.changes.as_json()}


def version_of(folder: str | os.PathLike[str]) -> tuple[str, int]:
    """The name of a dataset and the number of its version, from its folder.

    >>> version_of("/datasets/flowers/v3"), version_of("photos"), version_of("photos-v2")
    (('flowers', 3), ('photos', 1), ('photos', 2))
    """
    path = Path(os.path.abspath(folder))
    if alone := _ALONE.fullmatch(path.name):
        return path.parent.name, int(alone[1])
    if suffixed := _SUFFIX.fullmatch(path.name):
        return suffixed[1], int(suffixed[2])
    return path.name, 1


def folder_of_version(folder: str | os.PathLike[str], number: int) -> Path:
    """The folder of another version of the dataset in `folder`, whether it exists or not."""
    path = Path(os.path.abspath(folder))
    if _ALONE.fullmatch(path.name):
        return path.with_name(f"v{number}")
    name = version_of(path)[0]
    return path.with_name(name if number == 1 else f"{name}-v{number}")


def versions(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """The folders of all versions of the dataset in `folder`, by number."""
    path = Path(os.path.abspath(folder))
    name, _ = version_of(path)
    alone = bool(_ALONE.fullmatch(path.name))
    found = {}
    for other in path.parent.iterdir() if path.parent.is_dir() else ():
        same = _ALONE.fullmatch(other.name) if alone else other.name == name or version_of(other)[0] == name
        if same and is_dataset_folder(other):
            found[version_of(other)[1]] = other
    return dict(sorted(found.items()))


def history(folder: str | os.PathLike[str]) -> list[DatasetVersion]:
    """The version in `folder` and those it was made from, the newest first. It ends where a parent was deleted."""
    path: Path | None = Path(os.path.abspath(folder))
    known = versions(folder)
    line: list[DatasetVersion] = []
    wanted = None
    while path is not None:
        about = describe(path)
        if wanted is not None and about["digest"] != wanted:
            break  # another dataset has its place
        line.append(described_version(path, about))
        parent = about.get("parent")
        if line[-1].parent is not None and line[-1].parent >= line[-1].number:
            raise RunError(
                "dataset history", f"{path / DESCRIPTION} is damaged: a version cannot come from a later one."
            )
        path, wanted = (known.get(parent["version"]), parent["digest"]) if parent else (None, None)
    return line


def described_version(folder: Path, about: dict[str, Any] | None = None) -> DatasetVersion:
    """What dataset.json says about a version."""
    about = about or describe(folder)
    name, number = version_of(folder)
    changes = None if "changes" not in about else DatasetChanges.from_json(about["changes"])
    parent = about.get("parent")
    return DatasetVersion(
        name, number, str(folder), about["digest"], parent["version"] if parent else None, changes,
        "created" if changes is None else changes.summary(),
        {split: sum(counts.values()) for split, counts in about["counts"].items()},
        len(about["classes"]), (folder / DESCRIPTION).stat().st_mtime,
    )  # fmt: skip
