"""Image files that a command or a page names: files, folders, patterns and lists; with labels, where folders or lists say them."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import RunError, UserError

LISTS = (".txt", ".csv")
_PATH_TITLES, _LABEL_TITLES = ("path", "file", "filename", "image"), ("label", "class")


class ImageEntry(NamedTuple):
    """A file and its label, if it has one."""

    path: str
    label: str = ""


def image_files(words: Sequence[str], where: str = "weft predict") -> list[str]:
    """The files that words name, in their order; of a folder and of a pattern in the order of their names.

    A named file is included even if it does not exist; reading it reports the error.
    """
    return [entry.path for entry in labelled_files(words, (), where)]


def labelled_files(words: Sequence[str], classes: Sequence[str], where: str = "weft predict") -> list[ImageEntry]:
    """The files that words name, with labels: of a list its second column, of a folder the folder inside it that is named like a class."""
    return [entry for word in words for entry in _entries(os.path.expanduser(word), classes, where)]


def _entries(word: str, classes: Sequence[str], where: str) -> list[ImageEntry]:
    if os.path.isdir(word):
        known = frozenset(classes)
        found = [ImageEntry(path, _folder_label(path, word, known)) for path in _in_folder(word)]
        return _some(where, found, f"the folder {word} has no files")
    if not os.path.exists(word) and glob.has_magic(word):
        matches = [ImageEntry(f) for f in sorted(glob.glob(word, recursive=True)) if os.path.isfile(f)]
        return _some(where, matches, f"no file matches {word}")
    if os.path.isfile(word) and word.lower().endswith(LISTS):
        listed = [ImageEntry(path, _class_name(label, classes)) for path, label in _in_list(Path(word), where)]
        return _some(where, listed, f"the list {word} names no files")
    return [ImageEntry(word)]


def _some(where: str, found: list[ImageEntry], otherwise: str) -> list[ImageEntry]:
    if not found:
        raise UserError(where, f"{otherwise}. Give image files, a folder, a pattern or a list of files.")
    return found


def _in_folder(folder: str) -> list[str]:
    """All files at any depth, except hidden ones."""
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(top, name) for name in sorted(names) if not name.startswith(".")]
    return found


def _folder_label(path: str, folder: str, classes: frozenset[str]) -> str:
    """The innermost folder that is named like a class."""
    parts = Path(os.path.relpath(path, folder)).parts[:-1]
    return next((part for part in reversed(parts) if part in classes), "")


def _class_name(label: str, classes: Sequence[str]) -> str:
    """A label as the network names it: lists may number the classes."""
    if label in classes or not (label.isascii() and label.isdigit() and len(label) < 10):
        return label
    return classes[int(label)] if int(label) < len(classes) else label


def _in_list(path: Path, where: str) -> list[ImageEntry]:
    """A path in each line, optionally followed by a label; relative to the list, else to the current folder."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise RunError(where, f"the list {path} cannot be read: {error.strerror or error}.") from error
    if path.suffix.lower() == ".csv":
        return _in_table(text, path.parent)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_placed(line, path.parent) for line in lines]


def _in_table(text: str, beside: Path) -> list[ImageEntry]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row and any(row)]
    titles = [cell.lower() for cell in rows[0]] if rows else []
    column = next((titles.index(name) for name in _PATH_TITLES if name in titles), None)
    labels = next((titles.index(name) for name in _LABEL_TITLES if name in titles), 1 if column is None else None)
    return [
        ImageEntry(_placed(row[column or 0], beside).path, row[labels] if labels is not None and len(row) > labels else "")
        for row in rows[0 if column is None else 1 :]
        if len(row) > (column or 0) and row[column or 0]
    ]  # fmt: skip


def _placed(line: str, beside: Path) -> ImageEntry:
    """The file that a line names. Paths may hold spaces, so what exists decides where the label begins."""
    path, _, label = line.rpartition(" ") if " " in line else line.rpartition("\t")
    for name, end in ((line, ""), (path.strip(), label)):
        for one in (beside / name, Path(name)):
            if name and one.is_file():
                return ImageEntry(str(one), end)
    return ImageEntry(str(beside / line))
