"""What a file of a network holds, detected from its content: a saved program, an ONNX model, or weights alone."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ..errors import RunError, UserError
from .zip_archive import END, START, ZIP_ERRORS

FileKind = Literal["program", "onnx", "weights", "unknown"]
MANIFEST = "manifest.json"  # of a saved program
KERAS_WEIGHTS, KERAS_CONFIG = "model.weights.h5", "config.json"  # entries of a .keras file
HDF5 = b"\x89HDF\r\n\x1a\n"  # how files of HDF5 begin
ONNX = b"\x08"  # the first field of an ONNX model, its version
WEIGHTS = (".pth", ".pt", ".bin", ".npz", ".safetensors", ".h5", ".keras")  # of files whose content says nothing
PICKLE = b"\x80"  # how files of PyTorch begin that are no zip archives


def file_kind(path: str | os.PathLike[str], where: str = "load") -> FileKind:
    """The kind of a file. Files of ONNX and Caffe have no mark at their beginning: there the suffix decides.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".caffemodel") as file:
    ...     _ = file.write(b"any"), file.flush()
    ...     file_kind(file.name)
    'weights'
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(where, f"the path of a file is required, got {path!r}.")
    file = Path(path)
    try:
        with file.open("rb") as content:
            start = content.read(16)
    except (OSError, ValueError) as error:
        raise RunError(where, f"{str(path) or 'the empty path'!r} cannot be read: {_reason(error)}.") from None
    if not start:
        raise RunError(where, f"{path} is empty.")
    if start[:4] in (START, END):
        return _zip_kind(file, where)
    suffix = file.suffix.lower()
    if start[:1] == PICKLE or start[:8] == HDF5 or start[8:9] == b"{" or suffix == ".caffemodel":
        return "weights"
    if start[:1] == ONNX or suffix == ".onnx":
        return "onnx"
    return "weights" if suffix in WEIGHTS else "unknown"


def _zip_kind(file: Path, where: str) -> FileKind:
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except ZIP_ERRORS:
        return "program"  # its reader says what is damaged
    if MANIFEST in names:
        return "program"
    if is_torch_zip(names) or is_keras_zip(names) or all(name.endswith(".npy") for name in names):
        return "weights"
    raise RunError(
        where, f"{file} is a zip archive without {MANIFEST}: it is no saved program, and it holds no weights."
    )


def is_torch_zip(names: Iterable[str]) -> bool:
    """Whether an archive with these entries was written by torch.save."""
    return any(name.endswith("/data.pkl") or name == "data.pkl" for name in names)


def is_keras_zip(names: Iterable[str]) -> bool:
    """Whether the entries of a zip archive are those of a .keras file."""
    return not {KERAS_WEIGHTS, KERAS_CONFIG}.isdisjoint(names)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
