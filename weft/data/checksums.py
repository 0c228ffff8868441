"""Checksums of a dataset's files, so that damaged data is rejected instead of used.

checksums.json   CRC-32 of dataset.json, and of labels.npy and index.npy of each split; verified when the dataset is opened
index.npy        offset, length and CRC-32 of each image; verified when the image is read
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import RunError

CHECKSUMS = "checksums.json"
INDEX = "index.npy"  # int64 (images, 3)


def write_checksums(folder: Path, names: Sequence[str]) -> None:
    """Write the checksums of these files of a folder."""
    found = {name: f"{zlib.crc32((folder / name).read_bytes()):08x}" for name in names}
    (folder / CHECKSUMS).write_text(json.dumps(found, indent=1) + "\n")


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksums of a folder's files, by name."""
    path = folder / CHECKSUMS
    try:
        found = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    if not isinstance(found, dict):
        raise damaged(path, "it must hold a table of names and checksums")
    return found


def read_checked(folder: Path, name: str, checksums: dict[str, str]) -> bytes:
    """The content of a file, after verifying its checksum."""
    content = read_bytes(folder / name)
    check(folder / name, content, checksums.get(name))
    return content


def check(path: Path, content: bytes, wanted: str | None) -> None:
    """Reject content whose checksum differs from the recorded one."""
    found = f"{zlib.crc32(content):08x}"
    if found != wanted:
        raise damaged(path, f"its checksum is {found}, {CHECKSUMS} records {wanted}")


def as_array(path: Path, content: bytes) -> np.ndarray:
    """The array in the content of an .npy file."""
    try:
        found: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy parses headers as Python literals, which raises many types of errors
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    return found


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error


def damaged(path: Path, why: str) -> RunError:
    return RunError("open_dataset", f"{path} is damaged: {why}. Delete the dataset and create it again.")
