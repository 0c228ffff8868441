"""Files that people send: written to disk as they arrive, never larger than allowed, and unpacked without trusting what archives say."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from ..errors import UserError

CHUNK = 1 << 20
MOST_FILES = 1_000_000  # in an archive
LARGEST_RATIO = 200  # unpacked bytes for each packed one, of a whole archive
SPARE = 1 << 30  # bytes of the disk that uploads leave free


@contextmanager
def upload_folder(parent: Path) -> Iterator[Path]:
    """A new folder for one upload, removed at the end unless it was moved away."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="upload-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def receive(chunks: AsyncIterator[bytes], target: Path, largest: int) -> int:
    """Write what arrives to a file; the number of bytes. More than `largest`, or than the disk can hold, is refused at once."""
    written = 0
    with target.open("xb") as file:
        async for chunk in chunks:
            written += len(chunk)
            _check_size(written, largest)
            _check_disk(target.parent, len(chunk))
            file.write(chunk)
    return written


def unpack_zip(archive: Path, target: Path, largest: int) -> list[Path]:
    """Unpack a zip file into an empty folder; its files. Links, absolute paths, .. and archives that grow beyond bounds are refused."""
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [one for one in packed.infolist() if not one.is_dir() and not _is_ignored(one.filename)]
            _check_members(members, archive.stat().st_size, largest)
            return [_unpack(packed, one, target, largest) for one in members]
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError("studio", f"a zip file is required, got one that cannot be read: {error}.") from None


def _check_members(members: list[zipfile.ZipInfo], packed: int, largest: int) -> None:
    if len(members) > MOST_FILES:
        raise UserError("studio", f"a zip file of at most {MOST_FILES:,} files is required, got {len(members):,}.")
    total = sum(one.file_size for one in members)
    _check_size(total, largest)
    if total > LARGEST_RATIO * max(packed, 1 << 20):
        raise UserError(
            "studio",
            f"the zip file holds {total:,} bytes in {packed:,}, more than {LARGEST_RATIO} times its size: it is refused.",
        )
    for one in members:
        place = PurePosixPath(one.filename.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts or ":" in place.parts[0] or "\0" in one.filename:
            raise UserError(
                "studio", f"the zip file holds {one.filename!r}, a path that leads out of it: it is refused."
            )
        if stat.S_ISLNK(one.external_attr >> 16):
            raise UserError("studio", f"the zip file holds {one.filename!r}, a link: links are refused.")


def _unpack(packed: zipfile.ZipFile, one: zipfile.ZipInfo, target: Path, largest: int) -> Path:
    place = target / one.filename.replace("\\", "/")
    place.parent.mkdir(parents=True, exist_ok=True)
    _check_disk(target, one.file_size)
    try:
        with packed.open(one) as source, place.open("xb") as file:
            _copy(source, file, min(one.file_size, largest), one.filename)
    except FileExistsError:
        raise UserError("studio", f"the zip file holds {one.filename!r} twice.") from None
    return place


def _copy(source: IO[bytes], file: BinaryIO, most: int, name: str) -> None:
    """Copy no more bytes than the archive's list says: that list may lie."""
    left = most
    while chunk := source.read(CHUNK):
        left -= len(chunk)
        if left < 0:
            raise UserError(
                "studio", f"the zip file holds {name!r}, which is longer than its list says: it is refused."
            )
        file.write(chunk)


def _check_size(size: int, largest: int) -> None:
    if size > largest:
        raise UserError(
            "studio",
            f"at most {largest:,} bytes are accepted, got more. Raise it with weft studio largest_upload=20000.",
        )


def _check_disk(folder: Path, needed: int) -> None:
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize - needed < SPARE:
        raise UserError(
            "studio", "the disk is almost full: an upload must leave 1 GiB free. Delete runs or datasets first."
        )


def _is_ignored(name: str) -> bool:
    """Files that operating systems add to archives."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return not parts or parts[0] == "__MACOSX" or parts[-1] in (".DS_Store", "Thumbs.db")


def bounded_request(request: Request, largest: int) -> Request:
    """The same request, whose body is refused once it is larger than allowed, whatever its header says."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > largest:
            raise HTTPException(413, f"requests of up to {largest >> 20} MiB are accepted")
        return message

    return Request(request.scope, counted)
