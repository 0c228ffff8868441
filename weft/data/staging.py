"""The hidden staging folder in which a dataset is created, its journal, and the atomic rename that publishes it.

The journal lists the chunks that are safely on disk. A creation restarted with the same digest resumes after them;
with another digest the staging folder is discarded.
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


class StagingFolder:
    """The staging folder next to the target, and the records of the completed chunks."""

    def __init__(self, target: Path, digest: str) -> None:
        self.target = target
        self.folder = target.parent / f".{target.name}.partial"
        self._journal = self.folder / "journal"
        self.done: list[dict[str, Any]] = self._resume(digest)

    def append_done(self, record: dict[str, Any]) -> None:
        """Record a completed chunk in the journal; its data must be on disk already."""
        append_record(self._journal, 1 + len(self.done), record)
        self.done.append(record)

    def split_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def publish(self, replace: bool) -> None:
        """Rename the staging folder to the target: the only step that other processes can see."""
        self._journal.unlink()
        for folder, _, files in os.walk(self.folder):
            for path in [*(os.path.join(folder, name) for name in files), folder]:
                _fsync(path)
        backup = _backup(self.target)
        if replace and self.target.exists():
            remove(backup)
            self.target.rename(backup)
        try:
            self.folder.rename(self.target)
        except OSError:
            recover(self.target)
            raise
        _fsync(str(self.target.parent))
        remove(backup)

    def _resume(self, digest: str) -> list[dict[str, Any]]:
        lines = _read_journal(self._journal)
        if lines and lines[0] == {"digest": digest}:
            return lines[1:]
        remove(self.folder)
        self.folder.mkdir(parents=True)
        append_record(self._journal, 0, {"digest": digest})
        return []


def _read_journal(journal: Path) -> list[dict[str, Any]]:
    """The records of a journal up to the first damaged line, such as one that was being written during a crash.

    The rest is truncated and converted again.
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
    """Append line `number` with its checksum; it is on disk when this returns."""
    text = json.dumps(record).encode()
    with open(path, "ab", buffering=0) as file:
        write_whole(file, _checksum(number, text) + text + b"\n")
        os.fsync(file.fileno())


def _checksum(number: int, text: bytes) -> bytes:
    """The line number seeds the checksum, so that lost and duplicated lines are detected too."""
    return f"{zlib.crc32(text, number):08x} ".encode()


@contextmanager
def lock(target: Path) -> Iterator[None]:
    """Let only one process create a dataset. The operating system releases the lock when the process ends."""
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
            raise RunError(
                "create", f"{target} is being created by another process. Wait for it, or stop it."
            ) from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def recover(target: Path) -> None:
    """Clean up after a process that was killed while it replaced an old dataset with a new one."""
    backup = _backup(target)
    if backup.exists() and not target.exists():
        backup.rename(target)
    remove(backup)


def _backup(target: Path) -> Path:
    return target.parent / f".{target.name}.old"


def check_target(target: Path, digest: str, replace: bool) -> bool:
    """Whether the dataset exists already; anything else under its name is rejected, never deleted."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    try:
        found = json.loads((target / DESCRIPTION).read_bytes())
        existing = found["digest"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError("create", f"{target} exists and is not a weft dataset. Choose another folder.") from None
    if existing != digest and not replace:
        raise UserError(
            "create",
            f"{target} is a dataset with other settings or files. Choose another folder, or pass replace=True.",
        )
    return bool(existing == digest)


def remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
