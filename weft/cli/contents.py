"""The contents of a dataset, as JSON and as text."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from .. import data
from ..data.dataset_folder import describe
from ..data.folders import split_folders
from ..report.axes import short
from ..report.text_format import counted
from ..text.tokenizer import CharTokenizer
from .table import table

MOST_CLASSES, MOST_FAILURES = 50, 10  # lines of the page
Facts = dict[str, Any]


def of_splits(what: str, splits: data.Splits, made: Path | None = None) -> Facts:
    """The facts about an open dataset, and those of a created dataset in a folder."""
    train = splits.train
    parts = {split: part for split, part in splits._asdict().items() if part is not None}
    found: Facts = {
        "data": what,
        "name": train.name,
        "splits": {split: len(part) for split, part in parts.items()},
        "shape": list(train.shape),
        "dtype": str(train.inputs(slice(0, 1)).dtype),
        "classes": _by_class({split: part.counts() for split, part in parts.items()}),
        "mean": train.mean,
        "std": train.std,
    }
    if isinstance(train, data.Text):
        found["characters" if isinstance(train.tokenizer, CharTokenizer) else "tokens"] = len(train.vocabulary)
    return found | (_of_made(made) if made is not None else {})


def of_images(path: Path) -> Facts:
    """The facts about image files that are not packed yet, without opening them."""
    parts = split_folders(path) if path.is_dir() else {}
    indices = {split: data.from_folders(folder) for split, folder in parts.items()}
    if not indices:
        indices = {"files": data.from_folders(path) if path.is_dir() else data.from_list(path, outside=True)}
    return {
        "data": str(path),
        "name": path.resolve().name if path.is_dir() else path.stem,
        "splits": {split: len(index) for split, index in indices.items()},
        "classes": _by_class({split: index.counts() for split, index in indices.items()}),
        "packed": False,
    }


def _by_class(counts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    names = dict.fromkeys(name for part in counts.values() for name in part)
    return {name: {split: part.get(name, 0) for split, part in counts.items()} for name in names}


def _of_made(folder: Path) -> Facts:
    about = describe(folder)
    return {
        "folder": str(folder),
        "store": about["store"],
        "bytes": bytes_of(folder),
        "failed": about.get("failed", 0),
        "failures": _failures(folder / "failed.csv"),
        "passed_over": about.get("passed_over", 0),
    }


def _failures(file: Path) -> list[dict[str, str]]:
    """The first files that failed; skipped files are in the list too, and left out here."""
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
        rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    except (OSError, csv.Error):  # the list was removed
        return []
    failed = [row for row in rows if len(row) == 2 and not row[1].startswith("passed over: ")]
    return [{"path": path, "reason": reason} for path, reason in failed[:MOST_FAILURES]]


def bytes_of(folder: Path) -> int:
    """The size of all files in a folder."""
    files = [Path(top, name) for top, _, names in os.walk(folder) for name in names]
    return sum(file.lstat().st_size for file in files)


# --- the page --------------------------------------------------------------------------------------------------------


def page(found: Facts) -> str:
    """The facts as text."""
    blocks = [[_title(found)], ["", *_table(found).splitlines()], _numbers(found), _made(found)]
    return "\n".join(line for block in blocks for line in block)


def _title(found: Facts) -> str:
    name = f"{shown(found['data'])}: "
    if not found.get("packed", True):
        return name + "image files, not packed yet. weft dataset create packs them; weft train does so too."
    shape = " x ".join(map(str, found["shape"])) or "one number"
    return f"{name}inputs of {shape}, {found['dtype']}"


def _table(found: Facts) -> str:
    splits, classes = found["splits"], found["classes"]
    if not classes:
        return table(list(splits), [[str(count) for count in splits.values()]])
    first = list(classes.items())[:MOST_CLASSES]
    rows = [[shown(name), *(str(counts[split]) for split in splits)] for name, counts in first]
    if len(classes) > len(first):
        rows.append([f"and {len(classes) - len(first)} more", *("" for _ in splits)])
    rows.append([f"all {len(classes)}", *(str(count) for count in splits.values())])
    return table(["class", *splits], rows, ["class"])


def _numbers(found: Facts) -> list[str]:
    lines = [
        f"{name:4}  {' '.join(f'{value:.4f}' for value in found[name])}" for name in ("mean", "std") if found.get(name)
    ]
    if "characters" in found:
        lines.append(f"a text of {counted(found['characters'], 'different character')}")
    return ["", *lines] if lines else []


def _made(found: Facts) -> list[str]:
    if "folder" not in found:
        return []
    report = shown(os.path.join(found["folder"], "failed.csv"))
    lines = ["", f"{size_text(found['bytes'])} on disk, stored as {found['store']}"]
    if found["failed"]:
        lines += [f"{_files(found['failed'])} failed:"]
        lines += [f"  {shown(one['path'])}: {shown(one['reason'])}" for one in found["failures"]]
        more = found["failed"] - len(found["failures"])
        lines += [f"  and {more} more, in {report}"] if more > 0 else []
    if found["passed_over"]:
        lines.append(f"{_files(found['passed_over'])} passed over, listed in {report}")
    return lines


def _files(count: int) -> str:
    return counted(count, "file")


def shown(name: str) -> str:
    """A file name with unprintable characters escaped."""
    return name if name.isprintable() else name.encode("unicode_escape", "backslashreplace").decode()


def size_text(count: int) -> str:
    """Bytes as text.

    >>> size_text(999), size_text(123_456), size_text(7_650_000_000)
    ('999 bytes', '123 kB', '7.65 GB')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{short(count / unit)} {name}"
    return f"{count} bytes"
