"""Atomic file writes and line appends.

A killed process leaves at most a temporary file, which `remove_stale` deletes: writers lock theirs, and a lock ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from ..errors import RunError

_TEMPORARY = re.compile(r"\..+\.\d+\.\d+")  # .name.process.thread


def replace_file(path: Path, parts: Iterable[bytes | memoryview], where: str = "save") -> None:
    """Write a file atomically: to a temporary file, synced to disk, then renamed."""
    replace_with(path, lambda file: file.writelines(parts), where)


def replace_with(path: Path, write: Callable[[BinaryIO], None], where: str = "save") -> None:
    """`replace_file` for a function that writes to an open file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with _open_locked(beside) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the first error is more informative
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(where, path, error) from error
        raise


def append_line(path: Path, line: str, where: str = "save") -> None:
    """Append a line to a file. If only a part of it fits on the disk, it is removed, so that the next line starts correctly."""
    try:
        with open(path, "ab", buffering=0) as file:
            write_whole(file, line.encode("utf-8", "replace") + b"\n")
    except OSError as error:
        raise cannot_write(where, path, error) from error


def write_whole(file: BinaryIO, content: bytes) -> None:
    """Append all of `content` to an unbuffered file, or nothing."""
    end = file.seek(0, os.SEEK_END)
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(end)
        raise


def remove_stale(*folders: Path) -> list[Path]:
    """Delete the temporary files in these folders whose writers have ended."""
    found = [path for folder in folders for path in folder.glob(".*") if _TEMPORARY.fullmatch(path.name)]
    return [path for path in found if _remove_unlocked(path)]


def cannot_write(where: str, path: object, error: OSError) -> RunError:
    """The error for a full disk, missing permissions and similar problems."""
    return RunError(where, f"{path} cannot be written: {error.strerror or error}.")


def _open_locked(path: Path) -> BinaryIO:
    """A new file that is locked while it is open. If the file was deleted before it was locked, it is created again."""
    while True:
        file = open(path, "wb")  # noqa: SIM115 (closed by the caller)
        with contextlib.suppress(
            OSError
        ):  # some network file systems have no locks; files on them never count as stale
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()


def _remove_unlocked(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
    except OSError:  # locked, already deleted, or not permitted
        return False
    return True
