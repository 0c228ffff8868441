"""Reads the idx format of MNIST: a magic number, the sizes, and the values; often compressed with gzip."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import RunError, UserError
from .dataset import Arrays
from .npz import channels_first, errors_name_files

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MAX_BYTES = 1 << 36


def from_idx(
    images: str | os.PathLike[str], labels: str | os.PathLike[str], classes: Sequence[str] | None = None, name: str = ""
) -> Arrays:
    """A dataset from a file of images and a file of labels."""
    x, y = read_idx(images), read_idx(labels)
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(
            "from_idx", f"labels must be integers of shape (n,), {labels} holds {y.dtype} of shape {y.shape}."
        )
    if x.ndim < 2:
        raise UserError(
            "from_idx", f"images must have two dimensions or more, {images} holds values of shape {x.shape}."
        )
    if len(x) != len(y):
        raise UserError("from_idx", f"{images} has {len(x)} images, but {labels} has {len(y)} labels.")
    with errors_name_files("from_idx", images, labels):
        return Arrays(channels_first(x), y, classes, name or Path(images).name.split("-images")[0])


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """The array in an idx file, compressed or not."""
    try:
        with open(path, "rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if not compressed:
                return _read(path, file)
            with gzip.open(file) as content:
                return _read(path, content)  # type: ignore[arg-type]  # a GzipFile has the interface of a file
    except EOFError:
        raise RunError(
            "read_idx", f"{path} is truncated: its compressed data is incomplete. Download it again."
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RunError("read_idx", f"{path} is damaged: {error}. Download it again.") from None
    except OSError as error:
        raise RunError("read_idx", f"{path} cannot be read: {error.strerror or error}.") from error


def _read(path: str | os.PathLike[str], file: BinaryIO) -> np.ndarray:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise RunError(
            "read_idx", f"{path} is not an idx file: it begins with {magic.hex() or 'nothing'}, not with 0000."
        )
    if magic[2] not in _TYPES or not 1 <= magic[3] <= 32:
        raise RunError(
            "read_idx", f"{path} is not an idx file: type {magic[2]:#04x} with {magic[3]} dimensions does not exist."
        )
    dtype, sizes = np.dtype(_TYPES[magic[2]]), file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise RunError("read_idx", f"{path} is truncated in its header. Download it again.")
    shape = tuple(np.frombuffer(sizes, ">u4").tolist())
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > _MAX_BYTES:
        raise RunError("read_idx", f"{path} claims to hold {wanted} bytes of shape {shape}: it is damaged.")
    return _values(path, file, shape, dtype, wanted)


def _values(
    path: str | os.PathLike[str], file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype, wanted: int
) -> np.ndarray:
    content = bytearray()
    while len(content) <= wanted:  # read one byte more than expected, to detect trailing data
        block = file.read(min(1 << 24, wanted + 1 - len(content)))
        if not block:
            break
        content += block
    if len(content) != wanted:
        amount = f"only {len(content)}" if len(content) < wanted else "more"
        raise RunError("read_idx", f"{path} should hold {wanted} bytes of values for {shape}, it holds {amount}.")
    return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
