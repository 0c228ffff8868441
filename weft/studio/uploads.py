"""Files that people send: written to disk as they arrive, never larger than allowed, and unpacked without trusting what archives say."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from ..data.open import is_image_source
from ..errors import UserError
from ..io.zip_archive import check_method

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
    """Write what arrives to a file; the number of bytes. More than `largest`, or than the disk can hold, is rejected at once."""
    written = 0
    with target.open("xb") as file:
        try:
            async for chunk in chunks:
                written += len(chunk)
                _check_size(written, largest)
                _check_disk(target.parent, len(chunk))
                file.write(chunk)
        except BaseException:  # a part of a file must neither be used nor be in the way of the next try
            target.unlink(missing_ok=True)
            raise
    return written


def unpack_zip(archive: Path, target: Path, largest: int) -> list[Path]:
    """Unpack a zip file into an empty folder; its files. Links, absolute paths, .. and archives that grow beyond bounds are rejected."""
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
            f"the zip file holds {total:,} bytes in {packed:,}, more than {LARGEST_RATIO} times its size: it is rejected.",
        )
    for one in members:
        check_method(one)
        place = PurePosixPath(one.filename.replace("\\", "/"))
        if place.is_absolute() or ".." in place.parts or ":" in place.parts[0] or "\0" in one.filename:
            raise UserError(
                "studio", f"the zip file holds {one.filename!r}, a path that leads out of it: it is rejected."
            )
        if stat.S_ISLNK(one.external_attr >> 16):
            raise UserError("studio", f"the zip file holds {one.filename!r}, a link: links are rejected.")


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
                "studio", f"the zip file holds {name!r}, which is longer than its list says: it is rejected."
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


# --- uploads that a dataset is made of --------------------------------------------------------------------------------------

KEPT = 3 * 86400.0  # seconds that an upload is kept that nothing was made of


class UploadStore:
    """Uploads in folders of their own: files with their paths, or an archive that is unpacked."""

    def __init__(self, root: Path, largest: int) -> None:
        self.root, self.largest = root, largest
        self._bytes: dict[str, int] = {}

    def new(self) -> str:
        """Begin an upload; its name. Old ones that nothing was made of are removed."""
        self.root.mkdir(parents=True, exist_ok=True)
        for old in self.root.iterdir():
            if time.time() - old.stat().st_mtime > KEPT:
                old.unlink() if old.is_file() else shutil.rmtree(old, ignore_errors=True)
        name = secrets.token_hex(8)
        (self.root / name).mkdir()
        return name

    def folder(self, name: str) -> Path:
        """The folder of an upload; an error if there is none."""
        if not re.fullmatch(r"[0-9a-f]{16}", name) or not (self.root / name).is_dir():
            raise UserError("studio", f"upload must be one of this studio, got {name!r}. Send the files again.")
        return self.root / name

    def source(self, name: str) -> Path:
        """What a dataset is made of: the folder, the only folder with class folders in it, or the only list or .npz file."""
        found = self.folder(name)
        while True:
            inside = sorted(found.iterdir())
            if len(inside) == 1 and inside[0].is_dir() and any(one.is_dir() for one in inside[0].iterdir()):
                found = inside[0]
                continue
            lists = [one for one in inside if one.is_file() and _is_list_or_arrays(one)]
            return lists[0] if len(lists) == 1 else found

    async def add_file(self, name: str, relative: str, chunks: AsyncIterator[bytes]) -> int:
        """Write a file of an upload as it arrives; its bytes."""
        target, part = self._place(name, relative), self._part(name)
        received = await receive(chunks, part, self.largest - self._so_far(name))
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
        self._bytes[name] = self._so_far(name) + received
        return received

    async def add_zip(self, name: str, chunks: AsyncIterator[bytes]) -> int:
        """Receive an archive and unpack it; how many files it held."""
        archive = self._part(name)
        try:
            await receive(chunks, archive, self.largest)
            return len(await asyncio.to_thread(unpack_zip, archive, self.folder(name), self.largest))
        finally:
            archive.unlink(missing_ok=True)

    def discard(self, name: str) -> None:
        shutil.rmtree(self.folder(name), ignore_errors=True)
        self._bytes.pop(name, None)

    def _part(self, name: str) -> Path:
        """Where a file arrives: outside of its upload, because a server that is killed leaves a part of it."""
        return self.folder(name).with_name(f"{name}-{secrets.token_hex(4)}.part")

    def _so_far(self, name: str) -> int:
        return self._bytes.get(name, 0)

    def _place(self, name: str, relative: str) -> Path:
        place = PurePosixPath(relative.replace("\\", "/"))
        wrong = (
            place.is_absolute() or not place.parts or ".." in place.parts or "\0" in relative or _is_ignored(relative)
        )
        if wrong or (self.folder(name) / place).exists():
            raise UserError("studio", f"a new file inside the upload is required, got {relative!r}.")
        return self.folder(name) / place


def _is_list_or_arrays(path: Path) -> bool:
    """Whether a dataset can be made of this file: a text is a list only if it names image files."""
    return path.suffix.lower() == ".npz" or (path.suffix.lower() in (".csv", ".txt") and is_image_source(path))


def bounded_request(request: Request, largest: int) -> Request:
    """The same request, whose body is rejected once it is larger than allowed, whatever its header says."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > largest:
            raise HTTPException(413, f"requests of up to {largest >> 20} MiB are accepted")
        return message

    return Request(request.scope, counted)
