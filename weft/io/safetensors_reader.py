"""Reads files in the safetensors format into NumPy arrays. `weft.io.safetensors` has the tensors, and describes the checksum."""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from ..dtypes import as_dtype
from ..errors import RunError, UserError

CHECKSUM = "crc32"  # its name in the metadata
BEFORE, ZEROS = f'{{"__metadata__":{{"{CHECKSUM}":"'.encode(), b"00000000"
PLACE = 8 + len(BEFORE)  # in the file
_BLOCK = 1 << 20
_NEARLY = 3  # bytes; the files of other programs differ in more


class ArrayContent(NamedTuple):
    """The content of a file. `checked`: whether it had a checksum that was verified."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, str]
    checked: bool


def load_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The arrays of a file by name."""
    return read_arrays(path).arrays


def read_arrays(path: str | os.PathLike[str]) -> ArrayContent:
    """The arrays and metadata of a file. One with a checksum is read twice, and rejected if it does not match."""
    try:
        checked = _check(path)
        with safe_open(path, framework="numpy", backend="pread") as file:
            texts = dict(file.metadata() or {})
            values = {name: file.get_tensor(name) for name in file.offset_keys()}
    except SafetensorError as error:
        raise RunError("load", f"{path} is damaged, cut off, or not a safetensors file: {error}.") from None
    except OSError as error:
        raise RunError("load", f"{path} cannot be read: {error.strerror or error}.") from error
    texts.pop(CHECKSUM, None)
    for name, value in values.items():
        _check_dtype(path, name, value)
    return ArrayContent(values, texts, checked)


def _check_dtype(path: str | os.PathLike[str], name: str, values: np.ndarray) -> None:
    try:
        as_dtype(values.dtype, "load")
    except UserError as error:  # a dtype that weft does not have
        raise RunError("load", f"{name!r} of {path} cannot be used: {error.message}") from None


def _check(path: str | os.PathLike[str]) -> bool:
    """Whether a file has a checksum; a wrong one raises an error."""
    with open(path, "rb", buffering=0) as file:
        start = file.read(PLACE + 8)
        if start[8:PLACE] != BEFORE:
            if _is_nearly(
                start[8:PLACE], BEFORE
            ):  # flipped bits must not turn the checksum into metadata that nobody reads
                raise RunError("load", f"{path} is damaged: the name of its checksum is misspelled.")
            return False
        found = zlib.crc32(start[:PLACE] + ZEROS)
        while block := file.read(_BLOCK):
            found = zlib.crc32(block, found)
    if start[PLACE:] != f"{found:08x}".encode():
        raise RunError(
            "load",
            f"{path} is damaged or cut off: its checksum is {found:08x}, it should be {start[PLACE:].decode('ascii', 'replace')}. "
            "Or another program has changed it and kept the old checksum.",
        )
    return True


def _is_nearly(found: bytes, expected: bytes) -> bool:
    return len(found) == len(expected) and sum(a != b for a, b in zip(found, expected, strict=True)) <= _NEARLY
