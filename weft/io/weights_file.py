"""`load_weights` reads the tensors of a file by name, whatever program wrote it. The format is detected from the content, not from the suffix."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..errors import RunError, UserError
from .caffe_file import load_caffe
from .file_kind import HDF5, MANIFEST, PICKLE, is_keras_zip, is_torch_zip
from .keras_file import load_keras, load_keras_zip
from .npz_file import read_npz
from .safetensors_reader import load_arrays
from .torch_file import load_torch
from .zip_archive import END, START, ZIP_ERRORS

Reader = Callable[[Path], dict[str, np.ndarray]]


def load_weights(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a file by name: safetensors, PyTorch (.pth, .pt, .bin), .npz, Keras (.h5, .keras) or Caffe (.caffemodel).

    Nothing in the file is executed. A file of PyTorch that holds more than tensors, such as a whole module, is rejected with the name of what it
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
        return _zip_reader(file)
    if start[8:9] == b"{":
        return load_arrays
    if start[:1] == PICKLE:
        return load_torch
    if start[:8] == HDF5:
        return load_keras
    if file.suffix.lower() == ".onnx":
        raise _whole_network(file, "an ONNX model")
    return load_caffe


def _zip_reader(file: Path) -> Reader:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except ZIP_ERRORS as error:
        raise RunError(
            "load_weights", f"{file} is damaged or cut off: it is not a zip archive that can be read ({error})."
        ) from None
    if MANIFEST in names:
        raise _whole_network(file, "a saved program")
    if is_torch_zip(names):
        return load_torch
    return load_keras_zip if is_keras_zip(names) else read_npz


def _whole_network(file: Path, what: str) -> UserError:
    return UserError(
        "load_weights",
        f"{file} is {what}, not a file of weights. weft.load reads it; weft convert {file.name} {file.stem}.safetensors writes its weights.",
    )
