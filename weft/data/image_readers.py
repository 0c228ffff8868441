"""Reads the images of a dataset folder and verifies their checksums: a damaged image raises an error."""

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
from .image_names import read_names
from .statistics import Statistics


class MappedImages(Arrays):
    """Decoded images in a memory-mapped file. The checksum of an image is verified when it is first read.

    Reading past the end of a truncated mapping would kill the process (SIGBUS), so the file size is checked first.
    """

    def __init__(
        self, path: Path, images: np.ndarray, labels: np.ndarray, index: np.ndarray, classes: Sequence[str], name: str,
        statistics: Statistics | None,
    ) -> None:  # fmt: skip
        super().__init__(images, labels, classes, name, statistics)
        self._path, self._checksums, self._last_byte = path, index[:, 2], _last_byte(index)
        self._checked, self._all_checked = np.zeros(len(labels), bool), False
        self._file = _open_file(self, path)
        check_index(path, index, images.nbytes and images[0].nbytes)

    @property
    def names(self) -> list[str]:
        return read_names(self._path.parent, len(self))

    @property
    def file(self) -> int:
        """The descriptor of its open file."""
        return self._file

    @property
    def x(self) -> np.ndarray:
        self._check(np.arange(len(self)))
        return self._x

    def inputs(self, indices: Any) -> np.ndarray:
        numbers = _index_array(indices, len(self))
        self._check(numbers)
        batch: np.ndarray = np.take(np.asarray(self._x), numbers, axis=0)
        return batch

    def _check(self, numbers: np.ndarray) -> None:
        check_size(self._path, os.fstat(self._file).st_size, self._last_byte)
        if self._all_checked:
            return
        unchecked = np.unique(numbers[~self._checked[numbers]])
        images = np.asarray(self._x)
        for number, wanted in zip(unchecked.tolist(), self._checksums[unchecked].tolist(), strict=True):
            if zlib.crc32(images[number]) != wanted:
                raise _damaged_image(self._path, number)
        self._checked[unchecked] = True
        self._all_checked = bool(self._checked.all())


class Encoded(Dataset):
    """Encoded images in LMDB, decoded on every read: slower than arrays, at a fraction of the size.

    Images are read with `pread` at the offsets of the index. LMDB itself memory-maps its file and follows page numbers
    in it, so a damaged file would crash the process; LMDB only writes the file, which other programs can read too.
    """

    def __init__(
        self, path: Path, labels: np.ndarray, index: np.ndarray, shape: tuple[int, int, int], classes: Sequence[str],
        name: str = "", statistics: Statistics | None = None,
    ) -> None:  # fmt: skip
        super().__init__(labels, classes, name, statistics)
        self._path, self._index, self._shape = path, index, shape
        self._file = _open_file(self, path)
        check_size(path, os.fstat(self._file).st_size, _last_byte(index))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def inputs(self, indices: Any) -> np.ndarray:
        return self.decode(self.read(indices))

    @property
    def names(self) -> list[str]:
        return read_names(self._path.parent, len(self))

    @property
    def file(self) -> int:
        """The descriptor of its open file."""
        return self._file

    def read(self, indices: Any) -> list[tuple[int, bytes]]:
        """The encoded images of these examples, with their numbers."""
        numbers = _index_array(indices, len(self))
        rows = zip(numbers.tolist(), self._index[numbers].tolist(), strict=True)
        return [(number, self._packed(number, *row)) for number, row in rows]

    def decode(self, images: Sequence[tuple[int, bytes]]) -> np.ndarray:
        """Encoded images as one array."""
        batch = np.empty((len(images), *self._shape), np.uint8)
        for place, (number, packed) in enumerate(images):
            image = decode(packed)
            if image.shape != self._shape:
                raise _damaged_image(self._path, number)
            batch[place] = image
        return batch

    def _packed(self, number: int, start: int, length: int, checksum: int) -> bytes:
        packed = _pread(self._path, self._file, length, start)
        if zlib.crc32(packed) != checksum:
            raise _damaged_image(self._path, number)
        return packed


class PackedImages:
    """The stored bytes of a split's images, decoded or encoded: what a new version of a dataset copies."""

    def __init__(self, path: Path, index: np.ndarray) -> None:
        self._path, self._index, self._file = path, index, _open_file(self, path)

    def read(self, number: int) -> bytes:
        """The bytes of an image, after verifying its checksum."""
        start, length, checksum = self._index[number].tolist()
        packed = _pread(self._path, self._file, length, start)
        if zlib.crc32(packed) != checksum:
            raise _damaged_image(self._path, number)
        return packed


def _pread(path: Path, file: int, length: int, start: int) -> bytes:
    try:
        return os.pread(file, length, start)
    except OSError as error:
        raise RunError("inputs", f"{path} cannot be read: {error.strerror or error}.") from error


def _open_file(owner: object, path: Path) -> int:
    """A file descriptor that is closed with its owner; it stays valid when the file is replaced."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error
    weakref.finalize(owner, os.close, handle)
    return handle


def _index_array(indices: Any, length: int) -> np.ndarray:
    found = _as_indices(indices, length)
    return np.arange(length)[found] if isinstance(found, slice) else found


def check_index(path: Path, index: np.ndarray, length: int) -> None:
    """Check that images of one length are stored contiguously."""
    if len(index) and not ((index[:, 1] == length).all() and (np.diff(index[:, 0]) == length).all()):
        raise damaged(path, "its images do not match its index")


def check_size(path: Path, size: int, wanted: int) -> None:
    """Check that a file is not truncated before the end of its last image."""
    if size < wanted:
        raise damaged(path, f"it is truncated: it has {size} bytes, its images end at {wanted}")


def _last_byte(index: np.ndarray) -> int:
    return int((index[:, 0] + index[:, 1]).max(initial=0))


def _damaged_image(path: Path, number: int) -> RunError:
    return RunError(
        "inputs", f"{path} is damaged: the checksum of image {number} is wrong. Delete the dataset and create it again."
    )
