"""Writes packed images: decoded into one array file, or encoded into LMDB. Both are filled chunk by chunk and can resume
after a known number of images. An index holds the offset, length and checksum of each image."""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from ..errors import RunError
from .checksums import INDEX
from .convert import ConversionOptions

_HEADER = 128  # bytes of a .npy header: enough for any number of images, which is known only at the end


class ArrayWriter:
    """Appends decoded images to images.npy."""

    def __init__(self, folder: Path, options: ConversionOptions, count: int) -> None:
        self._folder, self._shape, self._count = folder, options.shape, count
        path = folder / "images.npy"
        path.touch()
        end = _HEADER + count * int(np.prod(self._shape))
        if count and path.stat().st_size < end:
            raise _missing_images(folder)
        self._file = open(path, "r+b")  # noqa: SIM115  # closed by close()
        self._file.truncate(end)  # discard a partially written chunk
        self._file.seek(0, os.SEEK_END)

    def append(self, images: Sequence[bytes]) -> None:
        """Append images; they are on disk when this returns."""
        for image in images:
            self._file.write(image)
        _flush(self._file)
        self._count += len(images)

    def finish(self, checksums: Sequence[int]) -> None:
        """Write the header with the final count, and the index."""
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {(self._count, *self._shape)}, }}"
        self._file.seek(0)
        self._file.write(b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little"))
        self._file.write(text.ljust(_HEADER - 11).encode() + b"\n")
        _flush(self._file)
        length = int(np.prod(self._shape))
        starts = _HEADER + length * np.arange(self._count)
        _write_index(self._folder, starts, np.full(self._count, length), checksums)

    def close(self) -> None:
        self._file.close()


class LmdbWriter:
    """Writes encoded images to data.mdb, with their number as key."""

    def __init__(self, folder: Path, options: ConversionOptions, count: int) -> None:
        self._count, self._folder = count, folder
        self._environment = lmdb.open(str(folder), map_size=1 << 24)
        if self._environment.stat()["entries"] < count:
            self._environment.close()
            raise _missing_images(folder)

    def append(self, images: Sequence[bytes]) -> None:
        """Append images in one transaction; they are on disk when this returns."""
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for number, image in enumerate(images, self._count):
                        transaction.put(_key(number), image)
                break
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
        self._count += len(images)

    def finish(self, checksums: Sequence[int]) -> None:
        """Delete images of an interrupted chunk after the end, and write the index."""
        with self._environment.begin(write=True) as transaction:
            number = self._count
            while transaction.delete(_key(number)):
                number += 1
        places = _lmdb_offsets(self._environment, self._folder / "data.mdb", checksums)
        _write_index(self._folder, *places, checksums)

    def close(self) -> None:
        self._environment.close()
        (self._folder / "lock.mdb").unlink(missing_ok=True)


Writer = ArrayWriter | LmdbWriter
WRITERS: dict[str, type[ArrayWriter] | type[LmdbWriter]] = {"arrays": ArrayWriter, "lmdb": LmdbWriter}


class SplitWriters:
    """One writer per split, each opened when it is first used, after the images that it holds already."""

    def __init__(self, folder: Callable[[str], Path], options: ConversionOptions, written: Mapping[str, int]) -> None:
        self._folder, self._options, self._written = folder, options, written
        self._open: dict[str, Writer] = {}

    def of(self, split: str) -> Writer:
        if split not in self._open:
            writer = WRITERS[self._options.store]
            self._open[split] = writer(self._folder(split), self._options, self._written.get(split, 0))
        return self._open[split]

    def finish(self, checksums: Mapping[str, Sequence[int]]) -> None:
        """Complete the splits, given the checksums of the images of each."""
        for split, found in checksums.items():
            self.of(split).finish(found)

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()


def _missing_images(folder: Path) -> RunError:
    return RunError(
        "create", f"{folder} lacks images that its journal records. Delete {folder.parent} and start again."
    )


def _key(number: int) -> bytes:
    return f"{number:010d}".encode()


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_index(folder: Path, starts: np.ndarray, lengths: np.ndarray, checksums: Sequence[int]) -> None:
    np.save(folder / INDEX, np.stack([starts, lengths, np.array(checksums, np.int64)], axis=1))


# --- offsets of the images in the LMDB file --------------------------------------------------------------------------


def _lmdb_offsets(environment: lmdb.Environment, path: Path, checksums: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths, in the file, of the values of the keys 0, 1, ...

    LMDB has no interface for this, but it memory-maps the file: differences of addresses are differences of offsets. So
    the offset of one value, found by searching for its bytes, gives all offsets. The bytes may occur more than once, so
    the checksum of every image is verified.
    """
    if not checksums:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    with environment.begin(buffers=True) as transaction:
        values = (np.frombuffer(transaction.get(_key(number)) or b"", np.uint8) for number in range(len(checksums)))
        spans = np.array([(value.ctypes.data, len(value)) for value in values], np.int64)
        first = bytes(transaction.get(_key(0)) or b"")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(first)
        while start >= 0:
            starts = spans[:, 0] - spans[0, 0] + start
            rows = zip(starts.tolist(), spans[:, 1].tolist(), checksums, strict=True)
            if starts.min() >= 0 and all(zlib.crc32(content[at : at + length]) == crc for at, length, crc in rows):
                return starts, spans[:, 1]
            start = content.find(first, start + 1)
    raise RunError("create", f"{path} does not hold the images that were written. Check the disk.")
