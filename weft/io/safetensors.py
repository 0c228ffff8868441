"""Tensors in files: the safetensors format, which every framework reads and which cannot hold code.

Eight bytes say how long the header is, the header is JSON (for each name its dtype, shape and place), the rest is the values one
after another. A file appears under its name only when it is complete and on the disk.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import DType, as_dtype
from ..errors import RunError, UserError
from ..ops.convert import asarray
from ..tensor import Tensor, as_tensor

LONGEST_HEADER = 100_000_000
_CODES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip
_DTYPES = {code: name for name, code in _CODES.items()}


def save(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors by their names. A crash or a full disk leaves the file that was there before as it was."""
    arrays = {name: np.array(as_tensor(value).numpy(), order="C", copy=None) for name, value in tensors.items()}
    header: dict[str, Any] = {}
    if metadata:
        wrong = [k for k, v in metadata.items() if not (isinstance(k, str) and isinstance(v, str))]
        if wrong:
            raise UserError("save", f"metadata is text by text, got {wrong[0]!r}: {metadata[wrong[0]]!r}.")
        header["__metadata__"] = dict(metadata)
    place = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _CODES[as_dtype(array.dtype, "save").name],
            "shape": list(array.shape),
            "data_offsets": [place, place + array.nbytes],
        }
        place += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the values begin at a multiple of 8
    replace_file(
        Path(path), [len(text).to_bytes(8, "little"), text, *(a.reshape(-1).view(np.uint8) for a in arrays.values())]
    )


def replace_file(path: Path, parts: Sequence[Any]) -> None:
    """Write a file beside its place, make sure it is on the disk, and move it there: the old one or the new one, never half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(beside, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunError("save", f"{path} cannot be written: {error.strerror or error}.") from error
        raise


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file by their names; a file that is damaged or no safetensors is refused."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise RunError("load", f"{path} cannot be read: {error.strerror or error}.") from error
    header, start = _header(path, content)
    found, ends = {}, 0
    entries = {name: _Entry(path, name, entry) for name, entry in header.items() if name != "__metadata__"}
    for name, entry in sorted(entries.items(), key=lambda pair: pair[1].begin):
        if entry.begin != ends or entry.end > len(content) - start:
            raise RunError("load", f"{path} is damaged: the values of {name!r} are not where they should be.")
        ends = entry.end
        values = content[start + entry.begin : start + entry.end].copy().view(entry.dtype.numpy).reshape(entry.shape)
        found[name] = asarray(values, copy=False)
    if ends != len(content) - start:
        raise RunError("load", f"{path} is damaged: {len(content) - start} bytes of values are there, not {ends}.")
    return {name: found[name] for name in entries}


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that a file holds beside its tensors."""
    header, _ = _header(path, np.fromfile(path, np.uint8))
    found: dict[str, str] = header.get("__metadata__", {})
    return found


def _header(path: Any, content: np.ndarray) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(content[:8].tobytes(), "little") if len(content) >= 8 else 0
    if not 2 <= size <= min(LONGEST_HEADER, len(content) - 8):
        raise RunError("load", f"{path} is not a safetensors file, or it is cut off.")
    try:
        header = json.loads(content[8 : 8 + size].tobytes().decode())
    except ValueError as error:
        raise RunError("load", f"{path} is not a safetensors file: {error}.") from None
    if not isinstance(header, dict):
        raise RunError("load", f"{path} is not a safetensors file: its header is no table.")
    return header, 8 + size


class _Entry:
    """One tensor's line of the header, checked."""

    dtype: DType

    def __init__(self, path: Any, name: str, entry: Any) -> None:
        try:
            self.dtype = as_dtype(_DTYPES[entry["dtype"]], "load")
            self.shape = tuple(int(n) for n in entry["shape"])
            self.begin, self.end = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError):
            raise RunError("load", f"{path} is damaged: {name!r} is described as {entry!r}.") from None
        if min(self.shape, default=0) < 0 or math.prod(self.shape) * self.dtype.itemsize != self.end - self.begin:
            raise RunError("load", f"{path} is damaged: {name!r} is described as {entry!r}.")
