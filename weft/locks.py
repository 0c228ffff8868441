"""One writer per run: the process that trains in a folder holds its lock, and the error of a second one names the first.

The lock is `flock` on the file `.lock` of the folder. The kernel releases it when the process ends, however that happens, so a lock
never has to be broken by hand. The file says who holds it, for the message. Network file systems that know `flock` (NFS, CephFS,
Lustre mounted with `flock`) lock for all machines. Where a file system has no locks at all, the text in the file decides: it counts as
long as its process runs on this machine, or if it names another machine, which cannot be asked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import RunError
from .records import dataclass

NAME = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # of file systems without flock
_held: dict[str, tuple[int, int]] = {}  # folder -> the thread that holds it, and its open file


def _forget() -> None:
    """A forked child must not keep the lock when its parent has ended."""
    for _, file in _held.values():
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def one_writer(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, no other process writes to this folder, which must exist. The lock is reentrant for the thread that holds it."""
    place, me = os.path.realpath(folder), threading.get_ident()
    if _held.get(place, (None,))[0] == me:
        yield
        return
    file = _locked(Path(folder))
    _held[place] = me, file
    try:
        os.truncate(file, 0)
        os.write(file, json.dumps(_myself()).encode())
        yield
    finally:
        _release(Path(folder), place, file)


@dataclass(frozen=True)
class LockHolder:
    """The process that holds the lock of a folder."""

    pid: int
    host: str

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.host == socket.gethostname()


def lock_holder(folder: str | os.PathLike[str]) -> LockHolder | None:
    """The process that writes to this folder; None if it has ended. Processes of other machines count as running."""
    try:
        with open(os.path.join(folder, NAME), encoding="utf-8") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    alive = isinstance(found, dict) and {"pid", "host"} <= found.keys() and _may_be_alive(found)
    return LockHolder(found["pid"], str(found["host"])) if alive else None


def writer_of(folder: str | os.PathLike[str]) -> str | None:
    """Who writes to this folder now, if it is a process of this machine."""
    holder = lock_holder(folder)
    return None if holder is None or not holder.is_here else f"process {holder.pid}"


def _release(folder: Path, place: str, file: int) -> None:
    if _held.pop(place, None) is None:
        return  # a forked child
    with contextlib.suppress(OSError):  # the folder may be gone
        (folder / NAME).unlink()
    os.close(file)


def _locked(folder: Path) -> int:
    """The open file, locked. It may have been taken away by who had it before: then there is a new one to lock."""
    path = folder / NAME
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RunError("train", f"{folder} cannot be written to: {error.strerror or error}.") from error
        try:
            _lock(file, folder)
            if _is_same(file, path):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = _owner(file)
        if error.errno in NO_LOCKS:
            if _may_be_alive(owner):
                raise _refusal(folder, owner, f" If it has ended, delete {folder / NAME}.") from None
            return
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise RunError("train", f"{folder} cannot be locked: {error.strerror or error}.") from error
        raise _refusal(folder, owner) from None


def _refusal(folder: Path, owner: dict[str, Any], more: str = "") -> RunError:
    who = f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= owner.keys() else "another process"
    return RunError(
        "train", f"a run has one writer, and {who} is writing to {folder}. Wait until it has ended, or stop it.{more}"
    )


def _is_same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {
        "pid": pid, "host": socket.gethostname(), "boot": _boot(), "began": _began(pid), "time": round(time.time(), 3),
    }  # fmt: skip


def _owner(file: int) -> dict[str, Any]:
    """What the text says of the process that holds the lock; empty while it is being written, or if it is damaged."""
    try:
        found = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _may_be_alive(owner: dict[str, Any]) -> bool:
    """Whether the process still runs. Process numbers are reused: start of the process and boot of the machine must agree too."""
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return False
    if owner.get("host") != socket.gethostname():
        return True
    began = _began(pid)
    return began is not None and began == owner.get("began") and owner.get("boot", _boot()) == _boot()


def _began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did; None if there is no such process, or it has ended and nobody has noticed."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _boot() -> str | None:
    """A name of this boot of the machine: start times of processes count from there."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
