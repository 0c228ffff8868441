"""One door to all data: `open_dataset` takes a name or a path and finds out what it is."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from ..errors import UserError
from .cifar import CIFAR10_FILES, CIFAR100_FILES, from_cifar
from .dataset import Splits
from .folders import from_folders, split_folders
from .index import Index
from .known import known, known_names
from .lists import from_list
from .made import is_made, open_made
from .sources import from_npz


def open_dataset(what: str | os.PathLike[str]) -> Splits:
    """The data behind a known name, a folder made by `create`, an .npz file, or a folder with the files of CIFAR.

    Image files cannot be trained on as they lie: for them the error says how to make a dataset. A path goes before a
    name, so `./mnist` and a folder called mnist are folders.

    >>> open_dataset("digits").train.shape
    (1, 8, 8)
    """
    path = Path(what)
    if not path.exists():
        return _by_name(str(what))
    if path.is_dir():
        return _from_folder(path)
    if path.suffix.lower() == ".npz":
        return from_npz(path)
    if path.suffix.lower() in (".csv", ".txt"):
        raise UserError("open_dataset", _create_first(path, from_list(path, outside=True)))
    raise UserError("open_dataset", f"{path} is no data that weft knows: a folder, .npz, .csv or .txt.")


def _by_name(name: str) -> Splits:
    if name in known_names():
        return known(name)
    near = difflib.get_close_matches(name, known_names(), 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UserError(
        "open_dataset", f"{name!r} is neither a file, nor a folder, nor one of {', '.join(known_names())}.{hint}"
    )


def _from_folder(path: Path) -> Splits:
    if is_made(path):
        return open_made(path)
    if any((path / files[0][0]).exists() for files in (CIFAR10_FILES, CIFAR100_FILES)):
        return from_cifar(path)
    if any(path.glob("train-images*")):
        raise UserError(
            "open_dataset", f'{path} has files of MNIST. Open it with weft.data.known("mnist", from_={str(path)!r}).'
        )
    raise UserError("open_dataset", _create_first(path, from_folders(split_folders(path).get("train", path))))


def _create_first(path: Path, index: Index) -> str:
    target = path.with_suffix("").name + "-dataset"
    return (
        f"{path} names {len(index)} files in {len(index.classes)} classes, which are not packed yet. Make a dataset first: "
        f"weft.data.create({str(path)!r}, {target!r}, size=(64, 64))."
    )
