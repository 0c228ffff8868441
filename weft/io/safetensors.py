"""Tensor files in the safetensors format, which every framework reads and which cannot contain code.

Eight bytes hold the length of the header, the header is JSON (dtype, shape and offsets of each name), the rest is the values. A file
appears under its name only when it is complete and on disk.

Files are read with the `safetensors` package, by read calls: a file that shrinks while it is read raises an error instead of SIGBUS.
They are written here, because the package orders metadata at random, so that equal content would give different bytes, and has no
checksum. The checksum is the first entry of the metadata: the CRC-32 of the whole file, computed with zeros in its own place.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import as_dtype
from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..tensor import Tensor, as_tensor
from .files import replace_file
from .safetensors_reader import CHECKSUM, PLACE, ZEROS, read_arrays

_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
_DTYPES = {code: as_dtype(name).numpy for name, code in _CODES.items()}
_LONGEST_HEADER = 100 << 20


class Content(NamedTuple):
    """The content of a file. `checked`: whether it had a checksum that was verified."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    checked: bool


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors by name. After a crash or with a full disk, the previous file is unchanged."""
    replace_file(Path(path), file_parts(tensors, metadata))


def file_parts(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """The bytes of a file with these tensors, in parts that share their memory."""
    arrays = {name: np.array(as_tensor(value).numpy(), order="C", copy=None) for name, value in tensors.items()}
    values = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    head = _head(arrays, metadata or {})
    checksum = zlib.crc32(head)
    for part in values:
        checksum = zlib.crc32(part, checksum)
    sealed = head[:PLACE] + f"{checksum:08x}".encode() + head[PLACE + 8 :]
    return [sealed, *values]


def views(memory: np.ndarray, path: object) -> dict[str, np.ndarray]:
    """The tensors in the bytes of a file, without a copy. For files inside of others, which `safe_open` does not read."""
    raw = memory.data
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > min(len(raw) - 8, _LONGEST_HEADER):
        raise _damaged(path, "its header is cut off")
    try:
        header = json.loads(bytes(raw[8 : 8 + length]))
        header.pop("__metadata__", None)
        return _checked_views(
            {str(n): _TensorEntry(**entry) for n, entry in header.items()}, memory[8 + length :], path
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header is wrong: {error}") from None


class _TensorEntry(NamedTuple):
    """A tensor in the header."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


def _checked_views(entries: Mapping[str, _TensorEntry], values: np.ndarray, path: object) -> dict[str, np.ndarray]:
    """Entries must fill the file one after the other, without holes and overlaps."""
    found, place = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None or any(type(n) is not int or n < 0 for n in (*entry.shape, *entry.data_offsets)):
            raise _damaged(path, f"{name!r} has the dtype {entry.dtype!r} and the shape {entry.shape}")
        size = dtype.itemsize * math.prod(entry.shape)
        if entry.data_offsets != [place, place + size] or place + size > len(values):
            raise _damaged(path, f"{name!r} is not where its size says")
        found[name] = _as_dtype(values[place : place + size], dtype).reshape(entry.shape)
        place += size
    if place != len(values):
        raise _damaged(path, "bytes are left over")
    return {name: found[name] for name in entries}


def _as_dtype(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """The bytes as numbers. NumPy computes with those that are not aligned too, but devices do not."""
    if dtype == np.bool_ and values.size and values.max() > 1:
        raise ValueError("a bool is neither 0 nor 1")
    aligned = values.ctypes.data % dtype.itemsize == 0
    return (values if aligned else values.copy()).view(dtype)


def _damaged(path: object, why: str) -> RunError:
    return RunError("load", f"{path} is damaged, cut off, or not a safetensors file: {why}.")


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by name; damaged files and other formats are rejected."""
    return read(path).tensors


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata of a file."""
    return read(path).metadata


def read(path: str | os.PathLike[str]) -> Content:
    """The tensors and metadata of a file. One with a checksum is read twice, and rejected if it does not match."""
    found = read_arrays(path)
    tensors = {name: asarray(value, copy=False) for name, value in found.arrays.items()}
    return Content(tensors, found.metadata, found.checked)


def _head(arrays: Mapping[str, np.ndarray], texts: Mapping[str, str]) -> bytes:
    """The length and the header, with zeros for the checksum."""
    wrong = [k for k, v in texts.items() if not (isinstance(k, str) and isinstance(v, str))]
    if wrong:
        raise UserError("save", f"metadata must map strings to strings, got {wrong[0]!r}: {texts[wrong[0]]!r}.")
    if CHECKSUM in texts or "__metadata__" in arrays:
        raise UserError("save", f"the metadata name {CHECKSUM!r} and the tensor name '__metadata__' are reserved.")
    header: dict[str, Any] = {"__metadata__": {CHECKSUM: ZEROS.decode(), **texts}}
    place = 0
    for name, array in arrays.items():
        code = _CODES[as_dtype(array.dtype, "save").name]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # so that the values begin at a multiple of 64
    return len(text).to_bytes(8, "little") + text
