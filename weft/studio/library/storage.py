"""Disk space by what it is used for, and the caches that can be deleted: they are made again when they are needed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ...compiler.disk_cache import ObjectCache
from ...compiler.store import cache
from ...errors import RunError
from ...records import dataclass

REMEMBERED = 60.0  # seconds: counting walks through all files
UPLOAD = "upload-"  # how the folders of uploads that are under way begin


@dataclass(frozen=True)
class StorageUse:
    """Bytes and number of files of one use."""

    bytes: int = 0
    files: int = 0

    def __add__(self, other: StorageUse) -> StorageUse:
        return StorageUse(self.bytes + other.bytes, self.files + other.files)


class DiskStorage:
    """What the folders of a studio hold: runs, datasets, uploads that are under way or were cut off, compiled code."""

    def __init__(self, runs: Path, datasets: Path, compiled: Callable[[], ObjectCache] = cache) -> None:
        self.runs, self.datasets, self.compiled = runs.absolute(), datasets.absolute(), compiled
        self._found: Mapping[str, StorageUse] = {}
        self._at = float("-inf")
        self._lock = threading.Lock()

    def uses(self) -> Mapping[str, StorageUse]:
        """The space of each use, counted at most once a minute."""
        with self._lock:
            if time.monotonic() - self._at > REMEMBERED:
                self._found, self._at = self._count(), time.monotonic()
            return self._found

    def disk(self) -> tuple[int, int]:
        """Used and all bytes of the disk that the runs are on, without those that the system reserves: used and free make all."""
        found = shutil.disk_usage(self.runs)
        return found.used, found.used + found.free

    def delete_caches(self) -> StorageUse:
        """Delete compiled code; what was deleted."""
        deleted = StorageUse(*self.compiled().size())
        self.compiled().clear()
        with self._lock:
            self._at = float("-inf")
        return deleted

    def _count(self) -> dict[str, StorageUse]:
        runs, first = _measure(self.runs, self.datasets)
        datasets, second = _measure(self.datasets, self.runs)
        caches = StorageUse(*self.compiled().size())
        return {"runs": runs, "datasets": datasets, "caches": caches, "uploads": first + second}


def _measure(root: Path, other: Path) -> tuple[StorageUse, StorageUse]:
    """What a folder holds without another one inside of it: its files, and those of uploads."""
    own, uploads = StorageUse(), StorageUse()
    folders = [(str(root), False)] if root.is_dir() else []
    while folders:
        folder, is_upload = folders.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path != str(other):
                            folders.append((entry.path, is_upload or entry.name.startswith(UPLOAD)))
                    elif entry.is_file(follow_symlinks=False):
                        one = StorageUse(entry.stat(follow_symlinks=False).st_size, 1)
                        own, uploads = (own, uploads + one) if is_upload else (own + one, uploads)
        except FileNotFoundError:  # deleted meanwhile
            continue
        except OSError as error:
            raise RunError("studio", f"the files of {folder} cannot be counted: {error}.") from None
    return own, uploads
