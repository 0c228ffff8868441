"""Reads a folder of class folders: the name of a folder is the class of all files in it, at any depth."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError
from .file_index import Index


def from_folders(root: str | os.PathLike[str], classes: Sequence[str] | None = None, name: str = "") -> Index:
    """Index the files of a folder of class folders. All files are included; their content decides the format later.

    Hidden files and files outside class folders are skipped and listed in `passed_over`. Links are followed; a folder
    that is reached twice is included once. `classes` gives the classes and their order; by default they are the folder
    names, sorted.
    """
    top = Path(root)
    if not top.is_dir():
        raise UserError("from_folders", f"{top} is not a folder.")
    walk = _FolderWalk(str(top))
    folders = walk.class_folders()
    if not folders:
        raise UserError(
            "from_folders",
            f"{top} has no class folders. Put the images of each class into a folder with the name of the class.",
        )
    names = _class_names(top, folders, classes)
    found = [(path, label) for label, folder in enumerate(names) if folder in folders for path in walk.files(folder)]
    paths = tuple(path for path, _ in found)
    return Index(
        paths=paths,
        names=tuple(os.path.relpath(path, top) for path in paths),
        labels=np.array([label for _, label in found], np.int64),
        classes=names,
        name=name or top.resolve().name,
        passed_over=tuple(walk.passed_over),
    )


def split_folders(root: str | os.PathLike[str]) -> dict[str, Path]:
    """The split folders of a root: train, and validation (valid, val) or test; empty if it has no such splits."""
    names = {"train": ("train", "training"), "validation": ("validation", "valid", "val"), "test": ("test", "testing")}
    found = {split: [Path(root) / name for name in known] for split, known in names.items()}
    parts = {split: path for split, paths in found.items() for path in paths[::-1] if path.is_dir()}
    return parts if "train" in parts and len(parts) > 1 else {}


def _class_names(top: Path, folders: list[str], classes: Sequence[str] | None) -> tuple[str, ...]:
    unknown = sorted(set(folders) - set(classes)) if classes is not None else []
    if unknown:
        raise UserError("from_folders", f"{top} has folders of unknown classes: {', '.join(unknown)}.")
    return tuple(folders if classes is None else classes)


class _FolderWalk:
    """Lists files below a folder and records which entries were skipped, and why."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.passed_over: list[tuple[str, str]] = []
        self._visited: dict[tuple[int, int], str] = {}
        self._enter(root)

    def class_folders(self) -> list[str]:
        found = []
        for entry in self._entries(self.root):
            if _is(entry, stat.S_ISDIR):
                found.append(entry.name)
            else:
                self._skip(entry.path, "is not in a class folder")
        return found

    def files(self, folder: str) -> list[str]:
        found: list[str] = []
        waiting = [os.path.join(self.root, folder)]
        while waiting:
            here = waiting.pop()
            if not self._enter(here):
                continue
            for entry in self._entries(here):
                if _is(entry, stat.S_ISDIR):
                    waiting.append(entry.path)
                elif _is(entry, stat.S_ISREG):
                    found.append(entry.path)
                else:
                    self._skip(entry.path, _description(entry))
        return sorted(found)

    def _enter(self, folder: str) -> bool:
        """Whether this folder is visited for the first time: links can form cycles or lead to one folder twice."""
        try:
            found = os.stat(folder)
        except OSError as error:
            self._skip(folder, f"cannot be listed: {error.strerror}")
            return False
        before = self._visited.setdefault((found.st_dev, found.st_ino), folder)
        if before != folder:
            self._skip(folder, f"is a link to {os.path.relpath(before, self.root)}, which is already included")
        return before == folder

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            if folder == self.root:
                raise RunError("from_folders", f"{folder} cannot be listed: {error.strerror}.") from error
            self._skip(folder, f"cannot be listed: {error.strerror}")
            return []
        for entry in entries:
            if entry.name.startswith("."):
                self._skip(entry.path, "is hidden: its name begins with a dot")
        return [entry for entry in entries if not entry.name.startswith(".")]

    def _skip(self, path: str, reason: str) -> None:
        self.passed_over.append((os.path.relpath(path, self.root), reason))


def _is(entry: os.DirEntry[str], kind: Callable[[int], bool]) -> bool:
    try:
        return kind(entry.stat().st_mode)
    except OSError:  # a broken or cyclic link
        return False


def _description(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "is a broken or cyclic link"
    return "is not a regular file"
