"""Opens a dataset that `create` has made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError, UserError
from .dataset import Arrays, Dataset, Splits
from .statistics import Statistics
from .store import Encoded
from .work import DESCRIPTION

VERSION = 1


def is_made(folder: Path) -> bool:
    """Whether this folder is a dataset that weft has made."""
    return (folder / DESCRIPTION).is_file()


def open_made(folder: Path) -> Splits:
    """The splits of a dataset; arrays are mapped, not read."""
    about = describe(folder)
    parts = {split: _open_split(folder, split, about) for split in about["counts"]}
    if "train" not in parts:
        raise RunError("open_dataset", f"{folder} is damaged: it has no training split.")
    return Splits(parts["train"], parts.get("validation"), parts.get("test"))


def describe(folder: Path) -> dict[str, Any]:
    """What dataset.json says, checked."""
    path = folder / DESCRIPTION
    try:
        about = json.loads(path.read_bytes())
        form, version = about["format"], about["version"]
        lists = [about[key] for key in ("classes", "shape", "mean", "std")]
        right = form == "weft dataset" and isinstance(about["counts"], dict) and all(isinstance(x, list) for x in lists)
        right = right and len(about["shape"]) == 3 and set(about["counts"]) <= {"train", "validation", "test"}
        right = right and about["store"] in ("arrays", "lmdb") and isinstance(about["name"], str)
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError("open_dataset", f"{path} is damaged: {type(error).__name__}: {error}.") from None
    if not right:
        raise RunError("open_dataset", f"{path} does not describe a dataset of weft.")
    if version != VERSION:
        raise UserError(
            "open_dataset", f"{folder} is of version {version}, this weft reads {VERSION}. Create it again."
        )
    return dict(about)


def _open_split(folder: Path, split: str, about: dict[str, Any]) -> Dataset:
    shape, statistics = tuple(about["shape"]), Statistics(tuple(about["mean"]), tuple(about["std"]))
    labels = _load(folder / split / "labels.npy", None)
    counts = (
        np.bincount(labels, minlength=len(about["classes"])) if labels.dtype == np.int64 and labels.ndim == 1 else None
    )
    if counts is None or counts.tolist() != list(about["counts"][split].values()):
        raise RunError(
            "open_dataset", f"{folder / split} is damaged: its labels are not those that {DESCRIPTION} counts."
        )
    if about["store"] == "lmdb":
        return Encoded(folder / split, labels, shape, about["classes"], about["name"], statistics)
    images = _load(folder / split / "images.npy", "r")
    if images.dtype != np.uint8 or images.shape != (len(labels), *shape):
        raise RunError(
            "open_dataset",
            f"{folder / split} is damaged: its images are {images.dtype} {images.shape}, not {(len(labels), *shape)}.",
        )
    return Arrays(images, labels, about["classes"], about["name"], statistics)


def _load(path: Path, mode: Any) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, mmap_mode=mode, allow_pickle=False)
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, EOFError) as error:
        raise RunError("open_dataset", f"{path} is damaged: {error}.") from None
    return found
