"""The hidden folder in which a dataset is made, its journal, and the one rename that makes it appear.

Whatever stops the work, the journal names the chunks that are safely on the disk. Whoever starts again with the same
digest goes on behind them; with another digest all is thrown away.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..io.files import cannot_write, write_whole

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
        append_record(self._journal, 1 + len(self.done), record)
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
        old = _old(self.target)
        if replace and self.target.exists():
            remove(old)
            self.target.rename(old)
        try:
            self.folder.rename(self.target)
        except OSError:
            recover(self.target)
            raise
        _sync(str(self.target.parent))
        remove(old)

    def _resume(self, digest: str) -> list[dict[str, Any]]:
        lines = _whole_lines(self._journal)
        if lines and lines[0] == {"digest": digest}:
            return lines[1:]
        remove(self.folder)
        self.folder.mkdir(parents=True)
        append_record(self._journal, 0, {"digest": digest})
        return []


def _whole_lines(journal: Path) -> list[dict[str, Any]]:
    """The records of a journal up to the first damaged line, such as one that was being written when the work stopped.

    All from there on is cut off and done again.
    """
    try:
        content = journal.read_bytes()
    except FileNotFoundError:
        return []
    records: list[dict[str, Any]] = []
    end = 0
    for line in content.splitlines(keepends=True):
        text = line[9:-1]
        if not line.endswith(b"\n") or line[:9] != _checksum(len(records), text):
            break
        records.append(json.loads(text))
        end += len(line)
    if end < len(content):
        os.truncate(journal, end)
    return records


def append_record(path: Path, number: int, record: dict[str, Any]) -> None:
    """Add line `number` with its checksum; it is on the disk when this returns."""
    text = json.dumps(record).encode()
    with open(path, "ab", buffering=0) as file:
        write_whole(file, _checksum(number, text) + text + b"\n")
        os.fsync(file.fileno())


def _checksum(number: int, text: bytes) -> bytes:
    """Begins with the number of the line, so that a line that is lost or stands there twice is noticed too."""
    return f"{zlib.crc32(text, number):08x} ".encode()


@contextmanager
def lock(target: Path) -> Iterator[None]:
    """Only one process makes a dataset. The lock ends with the process, however that ends."""
    path = target.parent / f".{target.name}.lock"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "wb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise cannot_write("create", target, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError("create", f"{target} is being made by another process. Wait for it, or stop it.") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def recover(target: Path) -> None:
    """Clear up after a process that was killed while it put a new dataset in the place of an old one."""
    old = _old(target)
    if old.exists() and not target.exists():
        old.rename(target)
    remove(old)


def _old(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def check_target(target: Path, digest: str, replace: bool) -> bool:
    """Whether the dataset is there already; anything else under its name is refused, never deleted."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        found = json.loads((target / DESCRIPTION).read_bytes())
        known = found["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
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
