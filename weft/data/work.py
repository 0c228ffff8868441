"""The hidden folder in which a dataset is made, its journal, and the one rename that makes it appear.

Whatever stops the work, the journal names the chunks that are safely on the disk. Whoever starts again with the same
digest goes on behind them; with another digest all is thrown away.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError

DESCRIPTION = "dataset.json"


class Work:
    """The folder beside the target, and the chunks that are done."""

    def __init__(self, target: Path, digest: str) -> None:
        self.target = target
        self.folder = target.parent / f".{target.name}.partial"
        self._journal = self.folder / "journal"
        self.done: list[dict[str, Any]] = self._resume(digest)

    def note(self, record: dict[str, Any]) -> None:
        """Write down that a chunk is done; its data must be on the disk already."""
        append_line(self._journal, json.dumps(record))
        self.done.append(record)

    def part(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def publish(self, replace: bool) -> None:
        """Give the folder its name: the only step that anyone else can see."""
        self._journal.unlink()
        for folder, _, files in os.walk(self.folder):
            for path in [*(os.path.join(folder, name) for name in files), folder]:
                _sync(path)
        old = self.target.parent / f".{self.target.name}.old"
        if replace and self.target.exists():
            remove(old)
            self.target.rename(old)
        self.folder.rename(self.target)
        _sync(str(self.target.parent))
        remove(old)

    def _resume(self, digest: str) -> list[dict[str, Any]]:
        lines = _whole_lines(self._journal)
        if lines and lines[0] == {"digest": digest}:
            return lines[1:]
        remove(self.folder)
        self.folder.mkdir(parents=True)
        append_line(self._journal, json.dumps({"digest": digest}))
        return []


def _whole_lines(journal: Path) -> list[dict[str, Any]]:
    """The records of a journal. A line without an end was being written when the work stopped: it is cut off."""
    try:
        content = journal.read_bytes()
    except FileNotFoundError:
        return []
    whole = content[: content.rfind(b"\n") + 1]
    try:
        records = [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        return []  # damaged: then nothing in it counts
    if len(whole) < len(content):
        os.truncate(journal, len(whole))
    return records


def append_line(path: Path, line: str) -> None:
    with open(path, "ab") as file:
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def lock(target: Path) -> Iterator[None]:
    """Only one process makes a dataset. The lock ends with the process, however that ends."""
    target.parent.mkdir(parents=True, exist_ok=True)
    path = target.parent / f".{target.name}.lock"
    with open(path, "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError("create", f"{target} is being made by another process. Wait for it, or stop it.") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def check_target(target: Path, digest: str, replace: bool) -> bool:
    """Whether the dataset is there already; anything else under its name is refused, never deleted."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        found = json.loads((target / DESCRIPTION).read_bytes())
        known = found["digest"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError("create", f"{target} exists and is no dataset of weft. Choose another folder.") from None
    if known != digest and not replace:
        raise UserError(
            "create", f"{target} is a dataset with other settings or files. Choose another folder, or say replace=True."
        )
    return bool(known == digest)


def remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
