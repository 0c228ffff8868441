"""Images of a dataset that was made, read from its files. Each is checked: a damaged one is an error, never a wrong image."""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunError
from .checksums import damaged
from .convert import decode
from .dataset import Arrays, Dataset, _as_indices
from .statistics import Statistics


class Mapped(Arrays):
    """Decoded images in a file that is mapped into memory. The checksum of an image is compared when it is first read.

    A mapped file that loses its end would kill the process at the next touch of what is gone, so its size is asked for before.
    """

    def __init__(
        self, path: Path, images: np.ndarray, labels: np.ndarray, index: np.ndarray, classes: Sequence[str], name: str,
        statistics: Statistics | None,
    ) -> None:  # fmt: skip
        super().__init__(images, labels, classes, name, statistics)
        self._path, self._checksums, self._end = path, index[:, 2], _end(index)
        self._checked, self._all_checked = np.zeros(len(labels), bool), False
        self._file = _opened(self, path)
        check_index(path, index, images.nbytes and images[0].nbytes)

    @property
    def x(self) -> np.ndarray:
        self._check(np.arange(len(self)))
        return self._x

    def inputs(self, indices: Any) -> np.ndarray:
        numbers = _numbers(indices, len(self))
        self._check(numbers)
        batch: np.ndarray = np.take(np.asarray(self._x), numbers, axis=0)
        return batch

    def _check(self, numbers: np.ndarray) -> None:
        check_size(self._path, os.fstat(self._file).st_size, self._end)
        if self._all_checked:
            return
        fresh = np.unique(numbers[~self._checked[numbers]])
        images = np.asarray(self._x)
        for number, wanted in zip(fresh.tolist(), self._checksums[fresh].tolist(), strict=True):
            if zlib.crc32(images[number]) != wanted:
                raise _damaged_image(self._path, number)
        self._checked[fresh] = True
        self._all_checked = bool(self._checked.all())


class Encoded(Dataset):
    """Encoded images in LMDB, decoded whenever they are read: slower than arrays, and a fraction of their size.

    They are read from where the index says, by read calls. LMDB itself maps its file and follows the page numbers in it, and so
    a damaged one ends the process; it serves to write the file, and other programs can read it.
    """

    def __init__(
        self, path: Path, labels: np.ndarray, index: np.ndarray, shape: tuple[int, int, int], classes: Sequence[str],
        name: str = "", statistics: Statistics | None = None,
    ) -> None:  # fmt: skip
        super().__init__(labels, classes, name, statistics)
        self._path, self._index, self._shape = path, index, shape
        self._file = _opened(self, path)
        check_size(path, os.fstat(self._file).st_size, _end(index))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def inputs(self, indices: Any) -> np.ndarray:
        numbers = _numbers(indices, len(self))
        batch = np.empty((len(numbers), *self._shape), np.uint8)
        for place, (number, row) in enumerate(zip(numbers.tolist(), self._index[numbers].tolist(), strict=True)):
            batch[place] = self._image(number, *row)
        return batch

    def _image(self, number: int, start: int, length: int, checksum: int) -> np.ndarray:
        try:
            packed = os.pread(self._file, length, start)
        except OSError as error:
            raise RunError("inputs", f"{self._path} cannot be read: {error.strerror or error}.") from error
        image = decode(packed) if zlib.crc32(packed) == checksum else None
        if image is None or image.shape != self._shape:
            raise _damaged_image(self._path, number)
        return image


def _opened(owner: Dataset, path: Path) -> int:
    """A handle that lives as long as its owner: it stays the same file when another one takes over the name."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error
    weakref.finalize(owner, os.close, handle)
    return handle


def _numbers(indices: Any, length: int) -> np.ndarray:
    found = _as_indices(indices, length)
    return np.arange(length)[found] if isinstance(found, slice) else found


def check_index(path: Path, index: np.ndarray, length: int) -> None:
    """Images of one length stand one after another."""
    if len(index) and not ((index[:, 1] == length).all() and (np.diff(index[:, 0]) == length).all()):
        raise damaged(path, "its images are not where its index says")


def check_size(path: Path, size: int, wanted: int) -> None:
    """A file must reach to the end of its last image."""
    if size < wanted:
        raise damaged(path, f"it is cut off: {size} bytes are there, its images end at {wanted}")


def _end(index: np.ndarray) -> int:
    return int((index[:, 0] + index[:, 1]).max(initial=0))


def _damaged_image(path: Path, number: int) -> RunError:
    return RunError(
        "inputs", f"{path} is damaged: the checksum of image {number} is wrong. Delete the dataset and create it again."
    )
