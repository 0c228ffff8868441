"""Opens a dataset folder that `create` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from ..io.dataset_names import VERSION_FOLDER
from .checksums import INDEX, as_array, check, damaged, read_bytes, read_checked, read_checksums
from .dataset import Dataset, Splits
from .image_readers import Encoded, MappedImages, PackedImages
from .label_kinds import examples_by_split, kind_of, label_counts
from .staging import DESCRIPTION
from .statistics import Statistics

VERSION = 2  # of the format; 1 had no checksums


def is_dataset_folder(folder: Path) -> bool:
    """Whether `create` wrote this folder."""
    return (folder / DESCRIPTION).is_file()


def version_folders(folder: Path) -> list[Path]:
    """The versions of a dataset whose folder holds v1, v2 and so on, the oldest first; none for any other folder."""
    try:
        found = [
            entry for entry in folder.iterdir() if VERSION_FOLDER.fullmatch(entry.name) and is_dataset_folder(entry)
        ]
    except OSError:
        return []
    return sorted(found, key=lambda entry: int(entry.name[1:]))


def newest_version(folder: Path) -> Path:
    """The newest version of a dataset that has versions; else the folder itself."""
    return folder if is_dataset_folder(folder) else (version_folders(folder) or [folder])[-1]


def open_dataset_folder(folder: Path) -> Splits:
    """The splits of a dataset; arrays are memory-mapped, not read."""
    about = describe(folder)
    parts = {split: _open_split(folder, split, about) for split in about["counts"]}
    if "train" not in parts:
        raise RunError("open_dataset", f"{folder} is damaged: it has no training split.")
    return Splits(parts["train"], parts.get("validation"), parts.get("test"))


def describe(folder: Path) -> dict[str, Any]:
    """The content of dataset.json, after checking its format, version and checksum."""
    path = folder / DESCRIPTION
    content = read_bytes(path)
    try:
        about = json.loads(content)
        form, version = about["format"], about["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    if form != "weft dataset":
        raise RunError("open_dataset", f"{path} does not describe a weft dataset.")
    if version != VERSION:
        raise UserError(
            "open_dataset", f"{path} has format version {version}, this weft reads {VERSION}. Create it again."
        )
    check(path, content, read_checksums(folder).get(DESCRIPTION))
    return dict(about)


def open_packed(folder: Path, split: str, about: dict[str, Any]) -> tuple[PackedImages, np.ndarray]:
    """The stored bytes of the images of a split, and their labels."""
    labels, index = _labels_and_index(folder, split, about)
    return PackedImages(folder / split / ("data.mdb" if about["store"] == "lmdb" else "images.npy"), index), labels


def _labels_and_index(folder: Path, split: str, about: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    checksums = read_checksums(folder)
    labels, index = (
        as_array(folder / name, read_checked(folder, name, checksums))
        for name in (f"{split}/labels.npy", f"{split}/{INDEX}")
    )
    _check_counts(folder / split, labels, index, about, split)
    return labels, index


def _open_split(folder: Path, split: str, about: dict[str, Any]) -> Dataset:
    labels, index = _labels_and_index(folder, split, about)
    shape, statistics = tuple(about["shape"]), Statistics(tuple(about["mean"]), tuple(about["std"]))
    if about["store"] == "lmdb":
        path = folder / split / "data.mdb"
        return Encoded(path, labels, index, shape, about["classes"], about["name"], statistics)
    path = folder / split / "images.npy"
    images = _mapped(path)
    if images.dtype != np.uint8 or images.shape != (len(labels), *shape):
        raise damaged(path, f"its images are {images.dtype} {images.shape}, not {(len(labels), *shape)}")
    return MappedImages(path, images, labels, index, about["classes"], about["name"], statistics)


def _check_counts(folder: Path, labels: np.ndarray, index: np.ndarray, about: dict[str, Any], split: str) -> None:
    """Check that labels and index match the description: intact files may belong to another dataset."""
    known = about["classes"]
    fits = (
        labels.ndim > 0
        and kind_of(labels) == about.get("labels", "class")
        and len(labels) == examples_by_split(about)[split]
    )
    if not fits or not _are_valid(labels, len(known)) or label_counts(labels, known) != about["counts"][split]:
        raise damaged(folder / "labels.npy", f"its labels do not match the counts in {DESCRIPTION}")
    if index.dtype != np.int64 or index.shape != (len(labels), 3) or (index < 0).any():
        raise damaged(folder / INDEX, f"it does not locate {len(labels)} images")


def _are_valid(labels: np.ndarray, classes: int) -> bool:
    kind = kind_of(labels)
    if kind == "numbers":
        return bool(labels.dtype == np.float32 and labels.ndim <= 2 and np.isfinite(labels).all())
    if kind == "classes":
        return int(labels.shape[1]) == classes
    return labels.dtype == np.int64 and labels.ndim == 1 and bool(((labels >= 0) & (labels < classes)).all())


def _mapped(path: Path) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # NumPy parses headers as Python literals, which raises many types of errors
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    return found
