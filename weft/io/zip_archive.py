"""Lists the entries of zip archives, which PyTorch and NumPy write, and refuses an archive whose list is not whole."""

from __future__ import annotations

import zipfile
from typing import BinaryIO

END = b"PK\x05\x06"  # of the record at the end of an archive
END_SIZE = 22
MANY = 0xFFFF  # the number is elsewhere


def checked_entries(file: BinaryIO, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """The entries of an archive. `zipfile` does not compare them with their number in the file, so a damaged list would lose some in silence."""
    found = archive.infolist()
    file.seek(-END_SIZE - len(archive.comment), 2)
    end = file.read(END_SIZE)
    count = int.from_bytes(end[10:12], "little")
    if end[:4] != END or count not in (len(found), MANY):
        raise zipfile.BadZipFile(f"it lists {len(found)} entries and should have {count}")
    return found
