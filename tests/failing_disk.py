"""A disk that is full from the n-th write on: every call of Python that writes is counted, whoever makes it."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CALLS = ("replace", "rename", "link", "mkdir", "fsync")  # of os; removing and cutting off need no space


class FailingDisk:
    """Files below `folder` can be written until `left` writes are done. With `number`, that error is raised instead."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, left: int, number: int = errno.ENOSPC) -> None:
        self.folder, self.left, self.number = os.path.realpath(folder), left, number
        self.failed = 0
        for name in CALLS:
            patch.setattr(os, name, self._counted(getattr(os, name)))
        self.open = builtins.open
        for module in (builtins, io):
            patch.setattr(module, "open", self._open)

    def spend(self) -> None:
        """Count a write, or fail."""
        self.left -= 1
        if self.left < 0:
            self.failed += 1
            raise OSError(self.number, os.strerror(self.number))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **settings: Any) -> Any:
            back = call.__name__ == "rename" and self.failed  # to a name that was there a moment ago
            if not back and (isinstance(arguments[0], int) or self._inside(arguments[0])):
                self.spend()
            return call(*arguments, **settings)

        return counted

    def _inside(self, path: Any) -> bool:
        return os.path.realpath(os.fspath(path)).startswith(self.folder)

    def _open(self, path: Any, mode: str = "r", *arguments: Any, **settings: Any) -> Any:
        if isinstance(path, int) or not set(mode) & set("wax+") or not self._inside(path):
            return self.open(path, mode, *arguments, **settings)
        self.spend()
        return _File(self, self.open(path, mode, *arguments, **settings))


class _File:
    """A file whose writes are counted; of the one that fails, half is written."""

    def __init__(self, disk: FailingDisk, file: Any) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, content: Any) -> int:
        try:
            self._disk.spend()
        except OSError:
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            raise
        written: int = self._file.write(content)
        return written
