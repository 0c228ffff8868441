"""Tensor files in the safetensors format, which every framework reads and which cannot contain code.

Eight bytes hold the length of the header, the header is JSON (dtype, shape and offsets of each name), the rest is the values. A file
appears under its name only when it is complete and on disk.

Files are read with the `safetensors` package, by read calls: a file that shrinks while it is read raises an error instead of SIGBUS.
They are written here, because the package orders metadata at random, so that equal content would give different bytes, and has no
checksum. The checksum is the first entry of the metadata: the CRC-32 of the whole file, computed with zeros in its own place.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from ..dtypes import as_dtype
from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..tensor import Tensor, as_tensor
from .files import replace_file

CHECKSUM = "crc32"  # its name in the metadata
_BEFORE, _ZEROS = f'{{"__metadata__":{{"{CHECKSUM}":"'.encode(), b"00000000"
_PLACE = 8 + len(_BEFORE)  # in the file
_BLOCK = 1 << 20
_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip


class Content(NamedTuple):
    """The content of a file. `checked`: whether it had a checksum that was verified."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    checked: bool


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors by name. After a crash or with a full disk, the previous file is unchanged."""
    arrays = {name: np.array(as_tensor(value).numpy(), order="C", copy=None) for name, value in tensors.items()}
    values = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    head = _head(arrays, metadata or {})
    checksum = zlib.crc32(head)
    for part in values:
        checksum = zlib.crc32(part, checksum)
    sealed = head[:_PLACE] + f"{checksum:08x}".encode() + head[_PLACE + 8 :]
    replace_file(Path(path), [sealed, *values])


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by name; damaged files and other formats are rejected."""
    return read(path).tensors


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a file."""
    return read(path).metadata


def read(path: str | os.PathLike[str]) -> Content:
    """The tensors and metadata of a file. One with a checksum is read twice, and rejected if it does not match."""
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
    return Content({name: _tensor(path, name, value) for name, value in values.items()}, texts, checked)


def _tensor(path: str | os.PathLike[str], name: str, values: np.ndarray) -> Tensor:
    try:
        return asarray(values, copy=False)
    except UserError as error:  # a dtype that weft does not have
        raise RunError("load", f"{name!r} of {path} cannot be used: {error.message}") from None


def _head(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> bytes:
    """The length and the header, with zeros for the checksum."""
    wrong = [k for k, v in texts.items() if not (isinstance(k, str) and isinstance(v, str))]
    if wrong:
        raise UserError("save", f"metadata must map strings to strings, got {wrong[0]!r}: {texts[wrong[0]]!r}.")
    if CHECKSUM in texts or "__metadata__" in arrays:
        raise UserError("save", f"the metadata name {CHECKSUM!r} and the tensor name '__metadata__' are reserved.")
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: _ZEROS.decode(), **texts}}
    place = 0
    for name, array in arrays.items():
        code = _CODES[as_dtype(array.dtype, "save").name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the values begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _check(path: str | os.PathLike[str]) -> bool:
    """Whether a file has a checksum; a wrong one raises an error."""
    with open(path, "rb", buffering=0) as file:
        start = file.read(_PLACE + 8)
        if start[8:_PLACE] != _BEFORE:
            return False
        found = zlib.crc32(start[:_PLACE] + _ZEROS)
        while block := file.read(_BLOCK):
            found = zlib.crc32(block, found)
    if start[_PLACE:] != f"{found:08x}".encode():
        raise RunError(
            "load",
            f"{path} is damaged or cut off: its checksum is {found:08x}, it should be {start[_PLACE:].decode('ascii', 'replace')}. "
            "Or another program has changed it and kept the old checksum.",
        )
    return True
