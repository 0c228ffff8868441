"""Reads .npz files, which NumPy writes. Sizes that a file declares are checked before memory is taken.

NumPy has no bfloat16 and stores it as two bytes without a type (`V2`); such arrays are read as bfloat16.
"""

from __future__ import annotations

import io
import math
import os
import zipfile

import numpy as np

from ..dtypes import bfloat16
from ..errors import RunError
from .zip_archive import check_packing, checked_entries

MAX_HEADER = 10_000  # bytes of the header of an array


def read_npz(path: str | os.PathLike[str], where: str = "load_weights") -> dict[str, np.ndarray]:
    """The arrays of a file by name; pickled objects are rejected."""
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            entries = checked_entries(file, archive)
            found = {info.filename.removesuffix(".npy"): _array(archive, info) for info in entries}
        if not found:  # also what is left of an archive whose last bytes are damaged
            raise ValueError("it holds no arrays")
        return found
    except OSError as error:
        raise RunError(where, f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # zipfile, zlib and NumPy's header parser raise many types of errors on damaged files
        raise RunError(where, f"{path} is damaged or no .npz file: {error or type(error).__name__}.") from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    check_packing(info)
    with archive.open(info) as entry:
        start = entry.read(MAX_HEADER + 12)
        head = io.BytesIO(start)
        shape, fortran, dtype = _header(head)
        size = math.prod(shape) * dtype.itemsize
        if head.tell() + size != info.file_size:
            raise ValueError(f"{info.filename[:100]!a} has another size than its header says")
        values = start[head.tell() :] + entry.read()  # the last read verifies the checksum
    found = np.frombuffer(values, dtype) if size else np.empty(0, dtype)
    found = found.view(bfloat16.numpy) if dtype == np.dtype("V2") else found
    return found.reshape(shape, order="F" if fortran else "C")


def _header(head: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"the version {version} of its format is not known")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(head, max_header_size=MAX_HEADER)
    if dtype.hasobject:
        raise ValueError("an array holds pickled objects, which are never loaded")
    if any(n < 0 for n in shape) or dtype.kind not in "biufcV":
        raise ValueError(f"an array of numbers is required, got the dtype {dtype} and the shape {shape}")
    return shape, fortran, dtype
