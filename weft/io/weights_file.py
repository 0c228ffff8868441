"""`load_weights` reads the tensors of a file by name, whatever program wrote it. The format is told from the content, not from the suffix."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError
from .caffe_file import load_caffe
from .npz_file import read_npz
from .safetensors import load
from .torch_file import is_torch_zip, load_torch
from .zip_archive import END, START, ZIP_ERRORS

HDF5_START = b"\x89HDF\r\n\x1a\n"
Reader = Callable[[Path], dict[str, np.ndarray]]


def load_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a file by name: safetensors, PyTorch (.pth, .pt, .bin), .npz or Caffe (.caffemodel).

    Nothing in the file is executed. A file of PyTorch that holds more than tensors, such as a whole module, is refused with the name of what it
    asks for. Tensors of stored (not compressed) files are views of the memory-mapped file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/w.npz", bias=np.zeros(3, np.float32))
    ...     load_weights(f"{folder}/w.npz")["bias"].shape
    (3,)
    """
    file = Path(path)
    if file.is_dir():
        raise UserError("load_weights", f"a file is required, got the folder {file}.")
    return _reader(file)(file)


def _reader(file: Path) -> Reader:
    try:
        with open(file, "rb") as content:
            start = content.read(16)
    except OSError as error:
        raise RunError("load_weights", f"{file} cannot be read: {error.strerror or error}.") from error
    if not start:
        raise RunError("load_weights", f"{file} is empty.")
    if start[:4] in (START, END):
        return load_torch if _holds_torch(file) else read_npz
    if start[8:9] == b"{":
        return _load_safetensors
    if start[:1] == b"\x80":
        return load_torch
    if start[:8] == HDF5_START:
        raise RunError(
            "load_weights", f"{file} is an HDF5 file, which weft does not read. Convert it to .npz or safetensors."
        )
    return load_caffe


def _holds_torch(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return is_torch_zip(archive.namelist())
    except ZIP_ERRORS as error:
        raise RunError(
            "load_weights", f"{file} is damaged or cut off: it is not a zip archive that can be read ({error})."
        ) from None


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in load(file).items()}
