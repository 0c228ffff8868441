"""Tensors as .npz files, which NumPy reads and writes; bfloat16 is stored as two bytes without a type, as NumPy has none."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import UserError
from ..ops.convert import asarray
from ..tensor import Tensor, as_tensor
from .files import replace_with
from .npz_file import read_npz


def save_npz(path: str | os.PathLike[str], tensors: Mapping[str, Any], *, compress: bool = False) -> None:
    """Write tensors by name to a file that `numpy.load` reads. After a crash or with a full disk, the previous file is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_npz(f"{folder}/a.npz", {"x": asarray([1.0, 2.0])})
    ...     np.load(f"{folder}/a.npz")["x"].tolist(), load_npz(f"{folder}/a.npz")["x"]
    ([1.0, 2.0], Tensor([1., 2.], dtype=float32))
    """
    wrong = next((name for name in tensors if not isinstance(name, str) or not name), None)
    if wrong is not None:
        raise UserError("save_npz", f"names must be texts that are not empty, got {wrong!r}.")
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, tensor in tensors.items():
                info = zipfile.ZipInfo(f"{name}.npy")  # with a date of its own, so that equal tensors give equal files
                info.compress_type = method
                with archive.open(info, "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, as_tensor(tensor).numpy(), allow_pickle=False)

    replace_with(Path(path), write, "save_npz")


def load_npz(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of an .npz file by name; pickled objects and damaged files are rejected."""
    return {name: asarray(array) for name, array in read_npz(path, "load_npz").items()}
