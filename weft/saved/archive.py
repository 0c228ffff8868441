"""The container of a saved program: a ZIP archive, written and read with bounded memory.

Entries are stored without compression (earlier packed programs have deflated texts), so that every tool opens the file, a small file cannot claim much memory, and weights are used
where the file is mapped into memory. ZIP's CRC-32 of an entry is verified by all cores before its content is used. The mapping is
copy-on-write: what is trained further does not change the file.
"""

from __future__ import annotations

import mmap
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import RunError
from ..io.crc32 import BackgroundCrc32
from ..io.files import replace_with
from ..io.zip_archive import HEADER, ZIP_ERRORS, checked_entries, entry_start, stored_start

Parts = Sequence[bytes | memoryview]
ALIGNMENT = 64  # of the weights in the file and in memory
_DATE = (1980, 1, 1, 0, 0, 0)  # equal programs are equal files
_ZIP64 = 20  # bytes of the extra field of entries above 2 GiB


def write_archive(path: Path, entries: Mapping[str, Parts], aligned: bool = True) -> None:
    """Write entries in this order, atomically. What is not aligned is a few bytes shorter."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, parts in entries.items():
                _write_entry(archive, file, name, parts, aligned)

    replace_with(path, write)


def _write_entry(archive: zipfile.ZipFile, file: BinaryIO, name: str, parts: Parts, aligned: bool) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = 0o644 << 16
    info.file_size = sum(memoryview(part).nbytes for part in parts)
    large = info.file_size >= zipfile.ZIP64_LIMIT
    start = file.tell() + HEADER + len(name.encode()) + large * _ZIP64
    padding = -(start + 4) % ALIGNMENT
    if aligned:
        info.extra = b"we" + padding.to_bytes(2, "little") + bytes(padding)  # readers skip fields that they do not know
    with archive.open(info, "w", force_zip64=large) as entry:
        for part in parts:
            entry.write(part)


class Archive:
    """A saved program open for reading. All errors are weft's and name the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file = path.open("rb")
        except OSError as error:
            raise RunError("load", f"{path} cannot be read: {error.strerror or error}.") from None
        with file:
            try:
                with zipfile.ZipFile(file) as archive:
                    infos = checked_entries(file, archive)
                self.entries = {info.filename: info for info in infos}
                if len(self.entries) < len(infos):
                    raise zipfile.BadZipFile("names of entries are repeated")
                # Lives as long as an array that is a view of it.
                self.content = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
            except ZIP_ERRORS as error:
                raise self.damaged(f"it is not a ZIP archive that can be read ({error})") from None

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

    def inflated(self, name: str, most: int) -> str:
        """A small entry that is deflated, as text."""
        info = self._entry(name, "manifest.json")
        start = self._start(info, entry_start)
        try:
            inflate = zlib.decompressobj(-15)
            found = inflate.decompress(self.content[start : start + info.compress_size].tobytes(), most)
            whole = inflate.eof and info.compress_type == zipfile.ZIP_DEFLATED
            if not whole or zlib.crc32(found) != info.CRC:
                raise self.damaged(f"{name} is longer than {most:,} bytes, cut off, or its checksum is wrong")
            return found.decode("utf-8")
        except (zlib.error, UnicodeDecodeError) as error:
            raise self.damaged(f"{name} is not deflated text ({error})") from None

    def read(self, name: str, named_by: str = "manifest.json") -> np.ndarray:
        """The bytes of an entry, aligned and verified by its checksum."""
        with self.reading(name, named_by) as found:
            return found

    @contextmanager
    def reading(self, name: str, named_by: str = "manifest.json") -> Iterator[np.ndarray]:
        """The bytes of an entry, aligned. They are verified while the block runs, and an error at its end says so."""
        info = self._entry(name, named_by)
        start = self._start(info, stored_start)
        found = self.content[start : start + info.file_size]
        checksum = BackgroundCrc32(found)
        try:
            yield found if start % ALIGNMENT == 0 else _aligned_copy(found)  # other tools do not align what they pack
        finally:
            if checksum.result() != info.CRC:  # also if the block failed: this is the reason
                raise self.damaged(f"the checksum of {name} is wrong") from None

    def _entry(self, name: str, named_by: str) -> zipfile.ZipInfo:
        if name not in self.entries:
            raise self.damaged(f"{name} is missing, which {named_by} names")
        return self.entries[name]

    def _start(self, info: zipfile.ZipInfo, find: Callable[[zipfile.ZipInfo, bytes, int], int]) -> int:
        try:
            header = self.content[max(info.header_offset, 0) :][:HEADER].tobytes()
            return find(info, header, len(self.content))
        except ZIP_ERRORS as error:
            raise self.damaged(f"{error}; entries are stored as they are (zip -0)") from None


def _aligned_copy(values: np.ndarray) -> np.ndarray:
    """The bytes at an address that is a multiple of `ALIGNMENT`."""
    memory = np.empty(len(values) + ALIGNMENT, np.uint8)
    shift = -memory.ctypes.data % ALIGNMENT
    found = memory[shift : shift + len(values)]
    found[:] = values
    return found
