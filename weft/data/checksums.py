"""Checksums of a dataset's files: what is damaged is found before it is believed.

checksums.json   the CRC-32 of dataset.json, and of labels.npy and index.npy of each split: they are checked when it is opened
index.npy        for each image where its bytes begin, how many they are, and their CRC-32: it is checked when the image is read
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
    """Write down the checksums of these files of a folder."""
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
        raise damaged(path, "it should hold a table of names and checksums")
    return found


def read_checked(folder: Path, name: str, checksums: dict[str, str]) -> bytes:
    """The content of a file, if its checksum is right."""
    content = read_bytes(folder / name)
    check(folder / name, content, checksums.get(name))
    return content


def check(path: Path, content: bytes, wanted: str | None) -> None:
    """Refuse content with another checksum than was written down."""
    found = f"{zlib.crc32(content):08x}"
    if found != wanted:
        raise damaged(path, f"its checksum is {found}, {CHECKSUMS} says {wanted}")


def as_array(path: Path, content: bytes) -> np.ndarray:
    """The array in the content of an .npy file."""
    try:
        found: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # NumPy reads headers with Python's own parser, which raises errors of every kind
        raise damaged(path, f"{type(error).__name__}: {error}") from None
    return found


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error


def damaged(path: Path, why: str) -> RunError:
    return RunError("open_dataset", f"{path} is damaged: {why}. Delete the dataset and create it again.")
