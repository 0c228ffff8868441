"""Copies of files between machines: the files of a run that have changed, and inputs such as datasets packed into one object.

A run is copied while it is trained. Checkpoints are read first and written last, so a copy is always what a killed process could have left: a checkpoint, and
other files that are as new or newer. `weft resume` continues from any such folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import UserError
from ...io.files import replace_file
from ...records import dataclass
from ..annotations import FILE as ANNOTATIONS

CHECKPOINT = "state/last.safetensors"
LARGEST = 1 << 30  # bytes of an input that is packed
REMOVED_WITH_RUN = ("weights/", "state/")  # a file that is gone from there is deleted in the copy too


@dataclass(frozen=True)
class FileCopy:
    """The content of a file and its time of change, by which both sides know that they have the same."""

    stamp: int
    content: bytes


def file_stamps(folder: Path) -> dict[str, int]:
    """When each file of a run was changed, checkpoints first. Locks and temporary files are left out."""
    found = {}
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.name.startswith("."):
                found[path.relative_to(folder).as_posix()] = path.stat().st_mtime_ns
        except FileNotFoundError:
            continue  # just deleted
    return dict(sorted(found.items(), key=lambda one: not one[0].startswith("state/")))


def changed_files(folder: Path, seen: Mapping[str, int]) -> dict[str, FileCopy]:
    """The files that the other side does not have as they are now."""
    found = {}
    for name, stamp in file_stamps(folder).items():
        if seen.get(name) != stamp:
            try:
                found[name] = FileCopy(stamp, (folder / name).read_bytes())
            except FileNotFoundError:
                continue
    return found


def write_copies(folder: Path, copies: Mapping[str, FileCopy]) -> None:
    """Write files, checkpoints last."""
    for name in sorted(copies, key=lambda name: name.startswith("state/")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [copies[name].content], "cluster")
        os.utime(path, ns=(copies[name].stamp, copies[name].stamp))


def update_run(folder: Path, copies: Mapping[str, FileCopy], names: Iterable[str]) -> None:
    """Bring the copy of a run up to date. Annotations stay as they are here, where people may change them."""
    write_copies(folder, {name: one for name, one in copies.items() if name != ANNOTATIONS})
    for name in file_stamps(folder).keys() - set(names):
        if name.startswith(REMOVED_WITH_RUN):
            (folder / name).unlink(missing_ok=True)


# --- inputs ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedInput:
    """A file or folder as a tar archive."""

    name: str
    digest: str
    content: bytes


def packed_input(where: str, path: Path) -> PackedInput:
    """Pack a file or folder that fits into the memory of a node."""
    total = sum(one.stat().st_size for one in ([path] if path.is_file() else path.rglob("*")) if one.is_file())
    if total > LARGEST:
        raise UserError(
            where,
            f"inputs of at most {LARGEST / 1e9:.1f} GB are sent to a cluster, got {path} with {total / 1e9:.1f} GB. "
            "Put it into a folder that all nodes have, and add cluster_data=shared.",
        )
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(path, path.name)
    content = packed.getvalue()
    return PackedInput(path.name, hashlib.sha256(content).hexdigest(), content)


def unpacked_input(packed: PackedInput, root: Path) -> Path:
    """The file or folder on this machine, unpacked below `root` once for all trainings."""
    place = root / packed.digest
    if not place.exists():
        root.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=root, prefix=".unpacking-"))
        try:
            with tarfile.open(fileobj=io.BytesIO(packed.content)) as archive:
                archive.extractall(beside, filter="data")
            os.rename(beside, place)
        except OSError:
            shutil.rmtree(beside, ignore_errors=True)
            if not place.exists():  # else another training was faster
                raise
    return place / packed.name
