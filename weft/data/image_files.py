"""Writes the images of a dataset as files: a folder of class folders for each split, or lists where labels are not classes."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import UserError
from .dataset import Dataset, Splits
from .texts import Text

_STEP = 256  # images that are read at once


def write_image_files(
    splits: Splits, folder: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> dict[str, Path]:
    """Write every image as a PNG file; the folder or list of each split, which `create` takes as a source.

    Examples with one class go to SPLIT/CLASS/NUMBER.png, all others to SPLIT/NUMBER.png with a list SPLIT.csv. Files that exist are kept:
    an interrupted call continues. `progress` is called with the number of images written, and in total.
    """
    target = Path(folder)
    parts = {split: part for split, part in splits._asdict().items() if part is not None}
    total, done, found = sum(map(len, parts.values())), 0, {}
    for split, part in parts.items():
        _check(part)
        places = _places(part, split)
        for start in range(0, len(part), _STEP):
            numbers = np.arange(start, min(start + _STEP, len(part)))
            for number, image in zip(numbers.tolist(), part.inputs(numbers), strict=True):
                _write(target / places[number], image)
            done += len(numbers)
            if progress is not None:
                progress(done, total)
        found[split] = target / split if _has_class_folders(part) else _write_list(target, split, part, places)
    return found


def _check(part: Dataset) -> None:
    if isinstance(part, Text) or len(part.shape) != 3 or part.shape[0] not in (1, 3):
        raise UserError(
            "create",
            f"images with 1 or 3 channels are required, got examples of {part.shape}. Train on the data directly.",
        )


def _has_class_folders(part: Dataset) -> bool:
    return bool(part.classes) and part.labels.ndim == 1


def _places(part: Dataset, split: str) -> list[Path]:
    """Where each image goes, below the folder."""
    digits = len(str(len(part)))
    if not _has_class_folders(part):
        return [Path(split, f"{number:0{digits}}.png") for number in range(len(part))]
    names = [name.replace("/", "_").lstrip(".") or "_" for name in part.classes]
    return [Path(split, names[label], f"{number:0{digits}}.png") for number, label in enumerate(part.labels.tolist())]


def _write(path: Path, image: np.ndarray) -> None:
    if path.exists():
        return
    if image.dtype != np.uint8:
        image = np.clip(np.rint(255.0 * image.astype(np.float64)), 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(part, "PNG")
    part.rename(path)


def _write_list(target: Path, split: str, part: Dataset, places: list[Path]) -> Path:
    labels = part.labels.reshape(len(part), -1)
    path = target / f"{split}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        for place, row in zip(places, labels.tolist(), strict=True):
            cells = [";".join(n for n, there in zip(part.classes, row, strict=True) if there)] if part.classes else row
            rows.writerow([place.as_posix(), *cells])
    return path
