"""`weft dataset change` and `weft dataset history`: new versions of a dataset, and what changed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from ..data.versions import DatasetChanges, DatasetVersion, history, new_version
from ..errors import UserError
from ..jobs.job import MADE_IS_KEPT
from ..jobs.schema import Setting, flag
from .arguments import Words, read
from .display import Display
from .progress import when_terminated
from .table import as_json, table


def _rows(text: str) -> dict[str, list[int]]:
    """train:3,5,validation:7 as rows by split."""
    found: dict[str, list[int]] = {}
    split = ""
    for part in text.split(","):
        before, colon, row = part.rpartition(":")
        split = before if colon else split
        if not split or not row.isdecimal():
            raise ValueError("it must be splits and numbers of images, such as train:3,5,validation:7")
        found.setdefault(split, []).append(int(row))
    return found


def _named_rows(text: str) -> dict[str, dict[int, str]]:
    """train:3:cat,train:5:dog as new names by split and row."""
    found: dict[str, dict[int, str]] = {}
    for part in text.split(","):
        split, row, name = (*part.split(":", 2), "", "")[:3]
        if not split or not row.isdecimal() or not name:
            raise ValueError("it must be split:image:new, such as train:3:daisy")
        found.setdefault(split, {})[int(row)] = name
    return found


def _renamed(text: str) -> dict[str, str]:
    """old:new,older:newer as a table."""
    pairs = [part.partition(":") for part in text.split(",")]
    if not all(old and new for old, _, new in pairs):
        raise ValueError("it must be old:new, such as bellis:daisy")
    return {old: new for old, _, new in pairs}


CHANGE = {
    "remove": Setting(_rows, None, "images to leave out: train:3,5,validation:7"),
    "relabel": Setting(_named_rows, None, "images with another class: train:3:daisy; a new name adds a class"),
    "move": Setting(_named_rows, None, "images that go to another split: validation:7:train"),
    "rename": Setting(_renamed, None, "classes with another name: bellis:daisy; two with the same new name are merged"),
    "add": Setting(str, None, "folder of class folders, or list of files, to add"),
    "changes": Setting(str, None, "JSON file with all of these, instead"),
    "json": Setting(flag, False, "print JSON, for programs"),
}


def change(words: Sequence[str]) -> None:
    """Write a new version of a dataset: weft dataset change FOLDER rename=bellis:daisy remove=train:3,5.

    The version it is made from stays as it is. Images are numbered from 0 in each split, as in its names.txt.
    """
    given = read("dataset change", words, CHANGE, 1, change.__doc__)
    if not given.plain:
        raise UserError("weft dataset change", "the folder of a dataset is required, got none.")
    write_version(Path(given.plain[0]), _changes(given), given["json"])


def write_version(folder: Path, changes: DatasetChanges, as_programs_read: bool) -> None:
    """Write a version with a progress bar, and print what it is."""
    with Display() as display, when_terminated(MADE_IS_KEPT):
        made = new_version(
            folder, changes, lambda now: display.bar(f"writing the next version of {folder.name}", now.done, now.total)
        )
    newest = history(made)[0]
    if as_programs_read:
        print(as_json(newest.as_json()))
        return
    place = os.path.relpath(made) if made.is_relative_to(os.getcwd()) else str(made)
    print(f"{place}: {newest.text}\n{_held(newest)}\n\ntrain on it: weft train data={quote(place)}")


def _changes(given: Words) -> DatasetChanges:
    own = {name: given[name] for name in ("remove", "relabel", "move", "rename", "add") if given[name] is not None}
    if given["changes"] is None:
        return DatasetChanges(**own)
    if own:
        raise UserError("weft dataset change", f"changes=FILE holds all changes, got {', '.join(own)} besides.")
    return DatasetChanges.read(given["changes"])


def show_history(words: Sequence[str]) -> None:
    """The versions that a dataset was made from: weft dataset history FOLDER."""
    given = read("dataset history", words, {"json": CHANGE["json"]}, 1, show_history.__doc__)
    if not given.plain:
        raise UserError("weft dataset history", "the folder of a dataset is required, got none.")
    line = history(given.plain[0])
    if given["json"]:
        print(as_json([version.as_json() for version in line]))
        return
    rows = [
        [f"v{one.number}", time.strftime("%Y-%m-%d %H:%M", time.localtime(one.created)), _held(one), one.text]
        for one in line
    ]
    print(table(["version", "made", "images", "what changed"], rows, ["version", "made", "images", "what changed"]))


def _held(version: DatasetVersion) -> str:
    images = ", ".join(f"{count:,} {split}" for split, count in version.counts.items())
    return f"{images}, {version.classes} classes"
