"""Packed stores of images: decoded ones in a file that is mapped, or encoded ones in LMDB. Both are filled chunk by chunk,
and both can go on from a count that is known to be safe."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from ..errors import RunError
from .convert import Recipe, decode
from .dataset import Dataset, _as_indices
from .statistics import Statistics

_HEADER = 128  # bytes of a .npy header: room for any count, which is known at the end only


class ArrayWriter:
    """Appends decoded images to images.npy."""

    def __init__(self, folder: Path, recipe: Recipe, count: int) -> None:
        self._shape, self._count = recipe.shape, count
        path = folder / "images.npy"
        path.touch()
        end = _HEADER + count * int(np.prod(self._shape))
        if count and path.stat().st_size < end:
            raise _lost(folder)
        self._file = open(path, "r+b")  # noqa: SIM115  # closed by close()
        self._file.truncate(end)  # what was half-written is cut off
        self._file.seek(0, os.SEEK_END)

    def append(self, images: Sequence[bytes]) -> None:
        """Add images; they are on the disk when this returns."""
        for image in images:
            self._file.write(image)
        _flush(self._file)
        self._count += len(images)

    def finish(self) -> None:
        """Write the header, which tells the count."""
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {(self._count, *self._shape)}, }}"
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little"))
        self._file.write(text.ljust(_HEADER - 11).encode() + b"\n")
        _flush(self._file)

    def close(self) -> None:
        self._file.close()


class LmdbWriter:
    """Puts encoded images into data.mdb under their numbers."""

    def __init__(self, folder: Path, recipe: Recipe, count: int) -> None:
        self._count, self._folder = count, folder
        self._environment = lmdb.open(str(folder), map_size=1 << 24)
        if self._environment.stat()["entries"] < count:
            self._environment.close()
            raise _lost(folder)

    def append(self, images: Sequence[bytes]) -> None:
        """Add images in one transaction; they are on the disk when this returns."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for number, image in enumerate(images, self._count):
                        transaction.put(_key(number), image)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        self._count += len(images)

    def finish(self) -> None:
        """Drop what an interrupted creation may have put behind the end."""
        with self._environment.begin(write=True) as transaction:
            number = self._count
            while transaction.delete(_key(number)):
                number += 1

    def close(self) -> None:
        self._environment.close()
        (self._folder / "lock.mdb").unlink(missing_ok=True)


Writer = ArrayWriter | LmdbWriter
WRITERS: dict[str, type[ArrayWriter] | type[LmdbWriter]] = {"arrays": ArrayWriter, "lmdb": LmdbWriter}


class Encoded(Dataset):
    """Encoded images in LMDB, decoded whenever they are read: slower than arrays, and a fraction of their size."""

    def __init__(
        self,
        folder: Path,
        labels: np.ndarray,
        shape: tuple[int, int, int],
        classes: Sequence[str],
        name: str = "",
        statistics: Statistics | None = None,
    ) -> None:
        super().__init__(labels, classes, name, statistics)
        self._folder, self._shape = folder, shape
        self._environment = _environment(folder)
        found = self._environment.stat()["entries"]
        if found != len(labels):
            raise RunError("open_dataset", f"{folder} is damaged: it has {found} images and {len(labels)} labels.")

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def inputs(self, indices: Any) -> np.ndarray:
        numbers = np.arange(len(self))[_as_indices(indices, len(self))]
        batch = np.empty((len(numbers), *self._shape), np.uint8)
        with self._environment.begin(buffers=True) as transaction:
            for place, number in enumerate(numbers.tolist()):
                batch[place] = self._image(transaction.get(_key(number)), number)
        return batch

    def _image(self, packed: memoryview | None, number: int) -> np.ndarray:
        try:
            image = decode(packed) if packed is not None else None
        except Exception:  # decoders raise errors of every kind on damaged bytes
            image = None
        if image is None or image.shape != self._shape:
            raise RunError("inputs", f"{self._folder} is damaged: image {number} cannot be decoded. Create it again.")
        return image


def _lost(folder: Path) -> RunError:
    return RunError(
        "create", f"{folder} lacks images that were written before. Delete {folder.parent} and start again."
    )


def _key(number: int) -> bytes:
    return f"{number:010d}".encode()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


# LMDB lets a process open each folder once, so equal folders share one environment.
_open: weakref.WeakValueDictionary[str, lmdb.Environment] = weakref.WeakValueDictionary()


def _environment(folder: Path) -> lmdb.Environment:
    name = str(folder.resolve())
    found = _open.get(name)
    if found is None:
        try:
            found = _open[name] = lmdb.open(name, readonly=True, lock=False, create=False)
        except lmdb.Error as error:
            raise RunError("open_dataset", f"{folder} cannot be opened: {error}.") from None
    return found
