"""Lists of image files with labels: CSV ("path,label") or text ("path label")."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import RunError, UserError
from .dataset import MOST_UNNAMED
from .index import Index


class _Row(NamedTuple):
    line: int
    path: str
    label: str


def from_list(
    path: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
    *,
    outside: bool = False,
    name: str = "",
) -> Index:
    """The files that a list names, relative to `root` (the folder of the list).

    A file that ends in .csv has a path and a label in each row, perhaps after a row of titles; any other has them in
    each line, the label last. Labels are names, or numbers when all of them are or when `classes` gives the names. Paths
    that leave the root are refused unless `outside` allows them.
    """
    file = Path(path)
    top = Path(root) if root is not None else file.parent
    rows, doubles = _without_doubles(file, list(_rows(file)))
    if not rows:
        raise UserError("from_list", f"{file} names no files.")
    names = tuple(classes) if classes is not None else _class_names(file, rows)
    return Index(
        paths=tuple(_place(file, row, top, outside) for row in rows),
        names=tuple(row.path for row in rows),
        labels=np.array(_labels(file, rows, names), np.int64),
        classes=names,
        name=name or file.stem,
        passed_over=doubles,
    )


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a text file that are not empty, such as the names of classes."""
    return [line.strip() for line in _text("read_lines", Path(path)).splitlines() if line.strip()]


def _text(where: str, file: Path) -> str:
    try:
        # Names of files may be any bytes: those that are no UTF-8 come back as they were.
        return file.read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise RunError(where, f"{file} cannot be read: {error.strerror}.") from error


def _rows(file: Path) -> Iterator[_Row]:
    text = _text("from_list", file)
    if "\0" in text:
        raise UserError("from_list", f"{file} is not a list: it holds zero bytes.")
    if file.suffix.lower() == ".csv":
        yield from _csv_rows(file, text)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            parts = line.strip().rsplit(None, 1)
            if len(parts) != 2:
                raise UserError("from_list", f"{file}, line {number}: a path and a label are required, got {line!r}.")
            yield _Row(number, *parts)


def _csv_rows(file: Path, text: str) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, cells in enumerate(reader):
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != 2:
                raise UserError(
                    "from_list", f"{file}, line {reader.line_num}: a path and a label are required, got {cells}."
                )
            if number == 0 and [cell.strip().lower() for cell in cells] in _TITLES:
                continue
            yield _Row(reader.line_num, cells[0], cells[1].strip())
    except csv.Error as error:
        raise UserError("from_list", f"{file}, line {reader.line_num}: {error}.") from None


_TITLES = [[path, label] for path in ("path", "file", "filename", "image") for label in ("label", "class")]


def _without_doubles(file: Path, rows: list[_Row]) -> tuple[list[_Row], tuple[tuple[str, str], ...]]:
    first: dict[str, _Row] = {}
    doubles = []
    for row in rows:
        before = first.setdefault(os.path.normpath(row.path), row)
        if before is row:
            continue
        if before.label != row.label:
            raise UserError(
                "from_list",
                f"{file}, line {row.line}: {row.path!r} has the label {row.label!r}, but {before.label!r} in line {before.line}.",
            )
        doubles.append((row.path, f"is listed again in line {row.line}, first in line {before.line}"))
    return list(first.values()), tuple(doubles)


def _class_names(file: Path, rows: list[_Row]) -> tuple[str, ...]:
    if not all(_is_number(row.label) for row in rows):
        return tuple(sorted({row.label for row in rows}))
    largest = max(rows, key=lambda row: int(row.label))
    if int(largest.label) >= MOST_UNNAMED:
        raise UserError(
            "from_list", f"{file}, line {largest.line}: the label {largest.label} is too large. Give `classes`."
        )
    return tuple(str(number) for number in range(int(largest.label) + 1))


def _labels(file: Path, rows: list[_Row], classes: tuple[str, ...]) -> list[int]:
    known = {name: number for number, name in enumerate(classes)}
    return [known[row.label] if row.label in known else _number(file, row, classes) for row in rows]


def _number(file: Path, row: _Row, classes: tuple[str, ...]) -> int:
    if not _is_number(row.label):
        raise UserError(
            "from_list", f"{file}, line {row.line}: the label {row.label!r} is unknown. Known are {_some(classes)}."
        )
    if not 0 <= int(row.label) < len(classes):
        raise UserError(
            "from_list", f"{file}, line {row.line}: labels must lie in 0...{len(classes) - 1}, got {row.label}."
        )
    return int(row.label)


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) < 18


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def _place(file: Path, row: _Row, root: Path, outside: bool) -> str:
    path = os.path.normpath(row.path)
    leaves = os.path.isabs(path) or path.split(os.sep)[0] == ".."
    if leaves and not outside:
        full = os.path.normpath(os.path.join(os.path.abspath(root), path))
        inside = os.path.commonpath([full, os.path.abspath(root)]) == os.path.abspath(root)
        if not inside:
            raise UserError(
                "from_list", f"{file}, line {row.line}: {row.path!r} lies outside {root}. outside=True allows it."
            )
    return os.path.join(os.path.abspath(root), path)
