"""The container of a saved program: an uncompressed ZIP archive, written and read with bounded memory.

Entries are stored without compression, so that every tool opens the file, a small file cannot claim much memory, and weights are read
straight into the memory that tensors use. ZIP's CRC-32 of an entry is verified by a second thread while the first one reads.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import RunError
from ..io.files import replace_with
from ..io.zip_archive import HEADER, ZIP_ERRORS, checked_entries, stored_start

Parts = Sequence[bytes | memoryview]
ALIGNMENT = 64  # of the weights in the file and in memory
_DATE = (1980, 1, 1, 0, 0, 0)  # equal programs are equal files
_BLOCK = 4 << 20
_ZIP64 = 20  # bytes of the extra field of entries above 2 GiB


def write_archive(path: Path, entries: Mapping[str, Parts]) -> None:
    """Write entries in this order, atomically."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, parts in entries.items():
                _write_entry(archive, file, name, parts)

    replace_with(path, write)


def _write_entry(archive: zipfile.ZipFile, file: BinaryIO, name: str, parts: Parts) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    info.file_size = sum(memoryview(part).nbytes for part in parts)
    large = info.file_size >= zipfile.ZIP64_LIMIT
    start = file.tell() + HEADER + len(name.encode()) + large * _ZIP64
    padding = -(start + 4) % ALIGNMENT
    info.extra = b"we" + padding.to_bytes(2, "little") + bytes(padding)  # readers skip fields that they do not know
    with archive.open(info, "w", force_zip64=large) as entry:
        for part in parts:
            entry.write(part)


class Archive:
    """A saved program open for reading. All errors are weft's and name the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = path.open("rb", buffering=0)
        except OSError as error:
            raise RunError("load", f"{path} cannot be read: {error.strerror or error}.") from None
        try:
            self.size = self.file.seek(0, 2)
            with zipfile.ZipFile(self.file) as archive:
                infos = checked_entries(self.file, archive)
            self.entries = {info.filename: info for info in infos}
            if len(self.entries) < len(infos):
                raise zipfile.BadZipFile("names of entries are repeated")
        except ZIP_ERRORS as error:
            self.close()
            raise self.damaged(f"it is not a ZIP archive that can be read ({error})") from None

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()

    def damaged(self, why: str) -> RunError:
        return RunError("load", f"{self.path} is not a saved program, or is damaged: {why}.")

    def text(self, name: str, most: int) -> str:
        """A small entry as text."""
        if name in self.entries and self.entries[name].file_size > most:
            raise self.damaged(f"{name} has {self.entries[name].file_size:,} bytes, {most:,} are allowed")
        try:
            return self.read(name).tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{name} is not text") from None

    def read(self, name: str) -> np.ndarray:
        """The bytes of an entry in new, aligned memory, verified by its checksum."""
        info = self.entries.get(name)
        if info is None:
            raise self.damaged(f"{name} is missing, which manifest.json names")
        start = self._start(info)
        memory = aligned(info.file_size)
        self.file.seek(start)
        with ThreadPoolExecutor(1) as second:
            crc = second.submit(int)
            for at in range(0, info.file_size, _BLOCK):
                block = memory[at : at + _BLOCK]
                self._fill(block, name)
                crc = second.submit(zlib.crc32, block.data, crc.result())
            if crc.result() != info.CRC:
                raise self.damaged(f"the checksum of {name} is wrong")
        return memory

    def _fill(self, block: np.ndarray, name: str) -> None:
        done, view = 0, block.data
        while done < len(view):
            count = self.file.readinto(view[done:])
            if not count:
                raise self.damaged(f"the file ended inside {name}")
            done += count

    def _start(self, info: zipfile.ZipInfo) -> int:
        try:
            self.file.seek(info.header_offset)
            return stored_start(info, self.file.read(HEADER), self.size)
        except ZIP_ERRORS as error:
            raise self.damaged(f"{error}; entries are stored as they are (zip -0)") from None


def aligned(size: int) -> np.ndarray:
    """Uninitialized bytes at an address that is a multiple of `ALIGNMENT`."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    shift = -memory.ctypes.data % ALIGNMENT
    return memory[shift : shift + size]
