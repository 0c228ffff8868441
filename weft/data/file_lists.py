"""Reads lists of image files with labels: CSV ("path,label") or text ("path label"). A label is a class, several classes, or numbers."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import RunError, UserError
from .dataset import MAX_UNNAMED_CLASSES
from .file_index import Index
from .label_kinds import LABELS, LabelKind, label_array


class _ListRow(NamedTuple):
    line: int
    path: str
    label: str
    rest: tuple[str, ...] = ()  # further cells: labels that are several classes or numbers


def from_list(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    *,
    labels: LabelKind = "class",
    outside: bool = False,
    name: str = "",
) -> Index:
    """Index the files named in a list, relative to `root` (default: the folder of the list).

    A .csv file has a path and a label in each row, with an optional header row; any other file has a path and a label
    on each line, separated by white space. Labels are class names; they are class indices if all of them are numbers,
    or if `classes` gives the names. Paths outside the root are rejected unless `outside` is true.

    With labels="classes" a file may have several classes, or none: "path,cat;dog" or "path,cat,dog" in a .csv file, "path cat;dog" in
    a text. With labels="numbers" each file has one number or more, as many as the first: "path,0.5,1.25" or "path 0.5 1.25".
    """
    if labels not in LABELS:
        raise UserError("from_list", f"labels must be one of {', '.join(LABELS)}, got {labels!r}.")
    file = Path(path)
    top = Path(root) if root is not None else file.parent
    rows, duplicates = _without_duplicates(file, list(_rows(file, labels)))
    if not rows:
        raise UserError("from_list", f"{file} names no files.")
    names, found = _labelled(file, rows, labels, classes)
    return Index(
        paths=tuple(_resolve(file, row, top, outside) for row in rows),
        names=tuple(row.path for row in rows),
        labels=found,
        classes=names,
        name=name or file.stem,
        passed_over=duplicates,
    )


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The non-empty lines of a text file, such as class names."""
    return [line.strip() for line in _text("read_lines", Path(path)).splitlines() if line.strip()]


def _text(where: str, file: Path) -> str:
    try:
        # File names may be arbitrary bytes: invalid UTF-8 is preserved by surrogate escapes.
        return file.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise RunError(where, f"{file} cannot be read: {error.strerror}.") from error


def _rows(file: Path, labels: LabelKind) -> Iterator[_ListRow]:
    text = _text("from_list", file)
    if "\0" in text:
        raise UserError("from_list", f"{file} is not a list: it holds zero bytes.")
    if file.suffix.lower() == ".csv":
        yield from _csv_rows(file, text, labels)
        return
    numbers: int | None = None  # of each line, by the first one
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            if labels == "numbers" and numbers is None:
                numbers = _trailing_numbers(line.split())
            parts = line.strip().rsplit(None, numbers or 1)
            if len(parts) < 2:
                raise UserError("from_list", f"{file}, line {number}: a path and a label are required, got {line!r}.")
            yield _ListRow(number, parts[0], parts[1], tuple(parts[2:]))


def _trailing_numbers(words: list[str]) -> int:
    """How many words at the end of a line are numbers; the first word is the path."""
    found = 0
    for word in reversed(words[1:]):
        if _as_float(word) is None:
            break
        found += 1
    return found


def _csv_rows(file: Path, text: str, labels: LabelKind) -> Iterator[_ListRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, cells in enumerate(reader):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) < 2 or (len(cells) > 2 and labels == "class"):
                hint = (
                    "" if len(cells) < 2 else ' Several classes or numbers need labels="classes" or labels="numbers".'
                )
                raise UserError(
                    "from_list", f"{file}, line {reader.line_num}: a path and a label are required, got {cells}.{hint}"
                )
            if number == 0 and _is_header(cells, labels):
                continue
            first, *rest = (cell.strip() for cell in cells[1:])
            yield _ListRow(reader.line_num, cells[0], first, tuple(rest))
    except csv.Error as error:
        raise UserError("from_list", f"{file}, line {reader.line_num}: {error}.") from None


def _is_header(cells: list[str], labels: LabelKind) -> bool:
    words = [cell.strip().lower() for cell in cells]
    if labels == "class":
        return words in _HEADERS
    return words[0] in ("path", "file", "filename", "image") and (labels == "classes" or _as_float(words[1]) is None)


_HEADERS = [[path, label] for path in ("path", "file", "filename", "image") for label in ("label", "class")]


def _without_duplicates(file: Path, rows: list[_ListRow]) -> tuple[list[_ListRow], tuple[tuple[str, str], ...]]:
    first: dict[str, _ListRow] = {}
    duplicates = []
    for row in rows:
        before = first.setdefault(os.path.normpath(row.path), row)
        if before is row:
            continue
        if before[2:] != row[2:]:
            raise UserError(
                "from_list",
                f"{file}, line {row.line}: {row.path!r} has the label {row.label!r}, but {before.label!r} in line {before.line}.",
            )
        duplicates.append((row.path, f"is a duplicate: listed in lines {before.line} and {row.line}"))
    return list(first.values()), tuple(duplicates)


def _class_names(file: Path, rows: list[_ListRow]) -> tuple[str, ...]:
    if not all(_is_number(row.label) for row in rows):
        return tuple(sorted({row.label for row in rows}))
    largest = max(rows, key=lambda row: int(row.label))
    if int(largest.label) >= MAX_UNNAMED_CLASSES:
        raise UserError(
            "from_list", f"{file}, line {largest.line}: the label {largest.label} is too large. Pass `classes`."
        )
    return tuple(str(number) for number in range(int(largest.label) + 1))


def _labelled(
    file: Path, rows: list[_ListRow], kind: LabelKind, classes: Sequence[str] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """The names of the classes, and the labels of all rows."""
    if kind == "numbers":
        return (), label_array([_numbers(file, row, rows[0]) for row in rows], kind, 0)
    if kind == "classes":
        chosen = [_several(row) for row in rows]
        names = tuple(classes) if classes is not None else tuple(sorted({name for one in chosen for name in one}))
        known = {name: number for number, name in enumerate(names)}
        for row, one in zip(rows, chosen, strict=True):
            for name in one:
                if name not in known:
                    raise UserError(
                        "from_list", f"{file}, line {row.line}: labels must be of {_shortened(names)}, got {name!r}."
                    )
        if not names:
            raise UserError("from_list", f"{file} names no classes.")
        return names, label_array([tuple(known[name] for name in one) for one in chosen], kind, len(names))
    names = tuple(classes) if classes is not None else _class_names(file, rows)
    return names, label_array(_labels(file, rows, names), kind, len(names))


def _several(row: _ListRow) -> list[str]:
    """The classes of a file: cells, or one cell with ; or | between them."""
    parts = [part.strip() for cell in (row.label, *row.rest) for part in cell.replace("|", ";").split(";")]
    return list(dict.fromkeys(filter(None, parts)))


def _numbers(file: Path, row: _ListRow, first: _ListRow) -> tuple[float, ...]:
    found = [_as_float(cell) for cell in (row.label, *row.rest)]
    if len(row.rest) != len(first.rest) or None in found:
        wanted = 1 + len(first.rest)
        raise UserError(
            "from_list",
            f"{file}, line {row.line}: {wanted} finite number{'s' if wanted > 1 else ''} as in line {first.line} required, "
            f"got {', '.join((row.label, *row.rest))}.",
        )
    return tuple(float(value) for value in found if value is not None)


def _as_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _labels(file: Path, rows: list[_ListRow], classes: tuple[str, ...]) -> list[int]:
    known = {name: number for number, name in enumerate(classes)}
    return [known[row.label] if row.label in known else _class_number(file, row, classes) for row in rows]


def _class_number(file: Path, row: _ListRow, classes: tuple[str, ...]) -> int:
    if not _is_number(row.label):
        raise UserError(
            "from_list",
            f"{file}, line {row.line}: the label must be one of {_shortened(classes)}, got {row.label!r}.",
        )
    if not 0 <= int(row.label) < len(classes):
        raise UserError(
            "from_list", f"{file}, line {row.line}: labels must lie in 0...{len(classes) - 1}, got {row.label}."
        )
    return int(row.label)


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 18


def _shortened(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _resolve(file: Path, row: _ListRow, root: Path, outside: bool) -> str:
    path = os.path.normpath(row.path)
    leaves = os.path.isabs(path) or path.split(os.sep)[0] == ".."
    if leaves and not outside:
        full = os.path.normpath(os.path.join(os.path.abspath(root), path))
        inside = os.path.commonpath([full, os.path.abspath(root)]) == os.path.abspath(root)
        if not inside:
            raise UserError(
                "from_list", f"{file}, line {row.line}: {row.path!r} is outside {root}. Pass outside=True to allow it."
            )
    return os.path.join(os.path.abspath(root), path)
