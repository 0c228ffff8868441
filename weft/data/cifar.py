"""The binary files of CIFAR-10 and CIFAR-100: records of one or two labels and 3,072 bytes of image."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError
from .dataset import Arrays, Splits
from .file_lists import read_lines
from .npz import errors_name_files
from .statistics import Statistics

SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
CIFAR10_FILES = (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",), "batches.meta.txt")
CIFAR100_FILES = (("train.bin",), ("test.bin",), "fine_label_names.txt")


def from_cifar(folder: str | os.PathLike[str], statistics: Statistics | None = None, name: str = "") -> Splits:
    """CIFAR-10 or CIFAR-100 from a folder with its binary files; the labels of CIFAR-100 are the fine ones."""
    top = Path(folder)
    for kind, count, label_bytes, files in (("cifar10", 10, 1, CIFAR10_FILES), ("cifar100", 100, 2, CIFAR100_FILES)):
        train, test, names = files
        if (top / train[0]).exists():
            classes = _class_names(top / names, count)
            parts = [_read([top / file for file in group], count, label_bytes) for group in (train, test)]
            with errors_name_files("from_cifar", top / names):
                learned, tested = (Arrays(x, y, classes, name or kind, statistics) for x, y in parts)
            return Splits(learned, None, tested)
    raise UserError("from_cifar", f"{top} has neither {CIFAR10_FILES[0][0]} nor {CIFAR100_FILES[0][0]}.")


def _class_names(file: Path, count: int) -> Sequence[str]:
    if not file.exists():
        return [str(number) for number in range(count)]
    names = read_lines(file)
    if len(names) != count:
        raise RunError("from_cifar", f"{file} should name {count} classes, it names {len(names)}.")
    return names


def _read(files: list[Path], classes: int, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    parts = [_records(file, label_bytes + _PIXELS) for file in files]
    for file, part in zip(files, parts, strict=True):
        wrong = np.flatnonzero(part[:, label_bytes - 1] >= classes)
        if wrong.size:
            label = part[wrong[0], label_bytes - 1]
            raise RunError(
                "from_cifar", f"{file}: record {wrong[0]} has the label {label}, there are {classes} classes."
            )
    records = np.concatenate(parts)
    return np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, *SHAPE), records[:, label_bytes - 1]


def _records(file: Path, length: int) -> np.ndarray:
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise RunError("from_cifar", f"{file} cannot be read: {error.strerror or error}.") from error
    if content.size == 0 or content.size % length:
        raise RunError("from_cifar", f"{file} should hold records of {length} bytes, it holds {content.size} bytes.")
    return content.reshape(-1, length)
