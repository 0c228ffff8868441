"""Zip archives, which PyTorch, NumPy and weft write: their entries, checked against the file, and where the stored ones begin."""

from __future__ import annotations

import zipfile
from typing import BinaryIO

END = b"PK\x05\x06"  # of the record at the end of an archive
END_SIZE = 22
MANY = 0xFFFF  # the number is elsewhere
START = b"PK\x03\x04"  # of the header of an entry
HEADER = 30  # bytes of that header, before the entry's name
MAX_RATIO, ANY_RATIO = 100, 1 << 26  # of an entry to its compressed bytes; entries up to so many bytes may have any
# What zipfile raises for damaged archives.
ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, OSError)


def checked_entries(file: BinaryIO, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The entries of an archive.

    `zipfile` does not compare them with their number in the file, so a damaged list would lose some in silence; and it takes memory for as
    many bytes as an entry says that it has. Entries compressed in unusual ways are rejected: see `check_method`.
    """
    found = archive.infolist()
    size = file.seek(0, 2)
    for info in found:
        check_method(info)
        if info.compress_size > size:
            raise zipfile.BadZipFile(f"the entry {info.filename[:100]!a} is longer than the file")
    file.seek(-END_SIZE - len(archive.comment), 2)
    end = file.read(END_SIZE)
    count = int.from_bytes(end[10:12], "little")
    if end[:4] != END or count not in (len(found), MANY):
        raise zipfile.BadZipFile(f"it lists {len(found)} entries and should have {count}")
    return found


def check_method(info: zipfile.ZipInfo) -> None:
    """Refuse entries that are neither stored nor deflated, the ways that everybody writes.

    `zipfile` unpacks bzip2 and LZMA without a bound: 600 bytes that say they are 10 become 600 MB in memory before anybody can count them.
    """
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(
            f"the entry {info.filename[:100]!a} is compressed in an unusual way: deflate is required"
        )


def stored_start(info: zipfile.ZipInfo, header: bytes, size: int) -> int:
    """Where the bytes of an uncompressed entry begin in a file of `size` bytes; `header` is the entry's own header.

    Nothing that is stored is larger than the file, so reading it takes no more memory than the file has bytes.
    """
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
        raise zipfile.BadZipFile(f"the entry {info.filename[:100]!a} is compressed or encrypted")
    return entry_start(info, header, size)


def entry_start(info: zipfile.ZipInfo, header: bytes, size: int) -> int:
    """Where the bytes of an entry begin, compressed or not."""
    name = f"{info.filename[:100]!a}"
    if info.header_offset < 0 or len(header) < HEADER or header[:4] != START:
        raise zipfile.BadZipFile(f"the entry {name} is not where the archive says")
    # The directory's copy of the header may have another extra field.
    start = info.header_offset + HEADER + sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
    if start + info.compress_size > size:
        raise zipfile.BadZipFile(f"the entry {name} is longer than the file")
    return start


def check_packing(info: zipfile.ZipInfo) -> None:
    """Refuse entries that are encrypted, compressed in unusual ways, or that unpack to far more than the file holds."""
    name = f"{info.filename[:100]!a}"
    check_method(info)
    if info.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    if info.file_size > max(ANY_RATIO, MAX_RATIO * info.compress_size):
        raise ValueError(f"{name} unpacks {info.compress_size} bytes to {info.file_size}, more than weights would")
