"""Image files named by a command: files, folders, patterns and lists."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from ..errors import RunError, UserError

LISTS = (".txt", ".csv")


def image_files(words: Sequence[str]) -> list[str]:
    """The files that words name, in their order; of a folder and of a pattern in the order of their names.

    A named file is included even if it does not exist; reading it reports the error.
    """
    return [file for word in words for file in _files(os.path.expanduser(word))]


def _files(word: str) -> list[str]:
    if os.path.isdir(word):
        return _some(_in_folder(word), f"the folder {word} has no files")
    if not os.path.exists(word) and glob.has_magic(word):
        return _some(
            [f for f in sorted(glob.glob(word, recursive=True)) if os.path.isfile(f)], f"no file matches {word}"
        )
    if os.path.isfile(word) and word.lower().endswith(LISTS):
        return _some(_in_list(Path(word)), f"the list {word} names no files")
    return [word]


def _some(found: list[str], otherwise: str) -> list[str]:
    if not found:
        raise UserError("weft predict", f"{otherwise}. Give image files, a folder, a pattern or a list of files.")
    return found


def _in_folder(folder: str) -> list[str]:
    """All files at any depth, except hidden ones."""
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(top, name) for name in sorted(names) if not name.startswith(".")]
    return found


def _in_list(path: Path) -> list[str]:
    """A path in each line, optionally followed by a label; relative to the list, else to the current folder."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise RunError("weft predict", f"the list {path} cannot be read: {error.strerror or error}.") from error
    if path.suffix.lower() == ".csv":
        rows = [row for row in csv.reader(text.splitlines()) if row and row[0].strip()]
        column = rows[0].index("path") if rows and "path" in rows[0] else 0
        named = [row[column].strip() for row in rows if len(row) > column]
        named = named[1:] if rows and "path" in rows[0] else named
    else:
        named = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_place(name, path.parent) for name in named]


def _place(name: str, beside: Path) -> str:
    without_label = name.rsplit(None, 1)[0]
    for one in (beside / name, Path(name), beside / without_label, Path(without_label)):
        if one.is_file():
            return str(one)
    return str(beside / name)
