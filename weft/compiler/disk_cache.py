"""The object cache: compiled code on disk, so that the second run of a program does not compile.

A file holds one entry; its name is a hash of the key. Files are verified: one that is truncated, damaged, of another format or of
another key is ignored, and replaced when its content is compiled again. Several processes may share a folder. Errors of the file system,
such as a read-only folder or a full disk, only mean that nothing is cached.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

_MAGIC = b"weft object\n"
_VERSION = 1
_HEAD = struct.Struct("<12sIQQ32s")  # magic, version, bytes of the key, bytes of the content, checksum of both
_OURS = re.compile(r"[0-9a-f]{40}\.(weft|making|[0-9a-f]{16}\.part)")
_KEEP = 0.8  # of the limit: evict down to this, so that not every new file evicts an old one
_UNCHECKED = (
    1 / 64
)  # of the limit: bytes that a process writes before it measures the folder again, which takes time for every file in it
_PATIENCE = 120.0  # seconds that a process waits for another one that compiles the same entry
_written: dict[Path, float] = {}  # bytes since this process measured a folder


class ObjectCache:
    """Entries by key, in a folder limited to about `limit_bytes`. A folder of None caches nothing."""

    def __init__(self, folder: str | os.PathLike[str] | None, limit_bytes: int) -> None:
        self.folder = None if folder is None else Path(folder)
        self.limit_bytes = limit_bytes

    def get(self, key: str) -> bytes | None:
        """The entry of this key, if there is a valid one."""
        if self.folder is None:
            return None
        path = self.folder / _file_name(key)
        try:
            content = _unpack(path.read_bytes(), key)
        except OSError:
            return None
        if content is not None:
            _touch(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store an entry, if the folder can be written to."""
        packed = _pack(key, content)
        if self.folder is None or len(packed) > _KEEP * self.limit_bytes:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds code that we will run
            _write(self.folder / _file_name(key), packed)
            self._bound(self.folder, len(packed))
        except OSError:
            return

    @contextmanager
    def making(self, key: str) -> Iterator[bool]:
        """Around compiling an entry: waits while another process or thread compiles the same one; returns whether one did. If that one
        takes too long or was stopped, or the folder is not writable, both compile it.
        """
        path = None if self.folder is None else self.folder / f"{digest(key)}.making"
        try:
            file = -1 if path is None else _opened_lock(path)
        except OSError:
            file = -1
        try:
            yield file >= 0 and _wait_for(file)
        finally:
            if file >= 0 and path is not None:
                _delete(path)  # before it is released: processes that wait have it open already
                os.close(file)

    def size(self) -> tuple[int, int]:
        """Bytes and number of its files."""
        if self.folder is None or not self.folder.is_dir():
            return 0, 0
        files = _files(self.folder)
        return sum(size for _, size, _ in files), len(files)

    def clear(self) -> None:
        """Delete all entries. Other files in the folder are kept."""
        if self.folder is not None and self.folder.is_dir():
            for _, _, path in _files(self.folder):
                Path(path).unlink(missing_ok=True)

    def _bound(self, folder: Path, new_bytes: int) -> None:
        """Measure the folder if enough has been written, and delete the least recently used files if it is nearly full."""
        unchecked = _UNCHECKED * self.limit_bytes
        # Short processes must measure sometimes, too: the count of written bytes starts at a random value.
        written = _written.get(folder, random.uniform(0.0, unchecked)) + new_bytes
        _written[folder] = written if written < unchecked else 0.0
        if written >= unchecked:
            _evict(folder, self.limit_bytes - unchecked, _KEEP * self.limit_bytes)


def _evict(folder: Path, most: float, keep: float) -> None:
    """If the folder has more than `most` bytes, delete the least recently used files until it has `keep`."""
    files = sorted(_files(folder))
    total = sum(size for _, size, _ in files)
    if total <= most:
        return
    for _, size, path in files:
        if total <= keep:
            break
        _delete(path)  # another process may have deleted it
        total -= size


def default_folder() -> Path | None:
    """The user's cache folder; None if there is no home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = given if os.path.isabs(given) else os.path.expanduser("~/.cache")
    return Path(base) / "weft" if os.path.isabs(base) else None


def digest(key: str) -> str:
    """A short name of a key."""
    return blake2b(key.encode(), digest_size=20).hexdigest()


def _file_name(key: str) -> str:
    return digest(key) + ".weft"


def _pack(key: str, content: bytes) -> bytes:
    name = key.encode()
    return _head(name, content) + name + content


def _unpack(packed: bytes, key: str) -> bytes | None:
    name = key.encode()
    content = packed[_HEAD.size + len(name) :]
    sound = packed.startswith(_head(name, content) + name)
    return content if sound else None


def _head(name: bytes, content: bytes) -> bytes:
    checksum = blake2b(name + content, digest_size=32).digest()
    return _HEAD.pack(_MAGIC, _VERSION, len(name), len(content), checksum)


def _write(path: Path, packed: bytes) -> None:
    """Write atomically: under another name first."""
    part = path.with_name(f"{path.stem}.{secrets.token_hex(8)}.part")
    try:
        part.write_bytes(packed)
        os.replace(part, path)
    except BaseException:
        _delete(part)
        raise


def _opened_lock(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _wait_for(file: int) -> bool:
    """Lock a file; returns whether another process had locked it."""
    deadline = time.monotonic() + _PATIENCE
    waited = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return waited
        except BlockingIOError:
            waited = True
            if time.monotonic() > deadline:
                return waited
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return waited


def _delete(path: str | Path) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _touch(path: Path) -> None:
    try:
        os.utime(path)
    except OSError:
        pass  # a read-only folder evicts nothing


def _files(folder: Path) -> list[tuple[int, int, str]]:
    """Our files, also partially written ones: time of last use, bytes, path."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                found.append((status.st_mtime_ns, status.st_size, entry.path))
    return found
