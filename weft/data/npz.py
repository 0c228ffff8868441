"""Reads datasets from .npz files, and converts image arrays to channels first."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import RunError, UserError
from ..io.zip_archive import checked_entries
from .dataset import Arrays, Splits

LARGEST_LABELS = 1 << 28  # bytes of labels that are read to look at a file
_ARRAY_NAMES = {
    "train": (("x_train", "y_train"), ("train_images", "train_labels"), ("x", "y"), ("images", "labels")),
    "validation": (("x_validation", "y_validation"), ("x_val", "y_val"), ("val_images", "val_labels")),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}


def from_npz(
    path: str | os.PathLike[str], x: str | None = None, y: str | None = None, classes: Sequence[str] | None = None
) -> Splits:
    """The datasets in an .npz file: the arrays named `x` and `y`, or arrays with conventional names.

    The conventional names are x_train and y_train, x_validation and y_validation, x_test and y_test; train_images and
    train_labels likewise; or x and y, or images and labels. groups_train or groups, if there is one, has the group of each training
    example (see `Dataset.groups`). Files with pickled Python objects are rejected, because
    loading them could run code.
    """
    file = Path(path)
    if (x is None) != (y is None):
        raise UserError("from_npz", "x and y must be given together.")
    found = _load(file)
    if x is not None and y is not None:
        return Splits(_arrays(file, found, x, y, classes))
    return _splits(file, found, classes)


def outline_npz(path: str | os.PathLike[str]) -> Splits:
    """The same datasets as `from_npz` finds, without their inputs: labels, and shapes that are filled with zeros and take no memory.

    A file of a few kilobytes may hold gigabytes of zeros: looking at one must not read them.
    """
    file = Path(path)
    labels = {y for pairs in _ARRAY_NAMES.values() for _, y in pairs}
    return _splits(file, _guarded(file, lambda content: _outlined(content, labels)), None)


def _splits(file: Path, found: Mapping[str, np.ndarray], classes: Sequence[str] | None) -> Splits:
    """The datasets of arrays with conventional names."""
    parts: dict[str, Arrays] = {}
    for split, pairs in _ARRAY_NAMES.items():
        pair = next((pair for pair in pairs if pair[0] in found and pair[1] in found), None)
        if pair is not None:
            names = classes if classes is not None or split == "train" else (parts["train"].classes if parts else None)
            groups = found.get("groups_train", found.get("groups")) if split == "train" else None
            parts[split] = _arrays(file, found, *pair, names, groups)
    if "train" not in parts:
        raise UserError(
            "from_npz",
            f"{file} must have arrays x_train and y_train, x and y, or images and labels; it has {', '.join(found) or 'none'}. "
            "Name the arrays with x= and y=.",
        )
    return Splits(parts["train"], parts.get("validation"), parts.get("test"))


def _load(file: Path) -> dict[str, np.ndarray]:
    def read(content: BinaryIO) -> dict[str, np.ndarray]:
        if zipfile.is_zipfile(content):
            with zipfile.ZipFile(content) as entries:
                checked_entries(content, entries)
        content.seek(0)
        archive = np.load(content, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise UserError("from_npz", f"{file} holds a single array. Save inputs and labels with np.savez.")
        with archive:
            found = {name: archive[name] for name in archive.files}
        if not all(isinstance(array, np.ndarray) for array in found.values()):  # NumPy gives the bytes of anything else
            raise ValueError("an entry is not an array")
        return found

    return _guarded(file, read)


def _outlined(content: BinaryIO, read: Container[str]) -> dict[str, np.ndarray]:
    """Arrays by name: those of `read` with their values, of the others shape and dtype."""
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(content) as archive:
        for info in checked_entries(content, archive):
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as entry:
                version = np.lib.format.read_magic(entry)
                header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = header(entry)
            if dtype.hasobject:
                raise ValueError("pickled objects are never loaded")
            if name in read and info.file_size > LARGEST_LABELS:
                raise ValueError(f"{name} has {info.file_size:,} bytes, more than labels would")
            if name in read:
                with archive.open(info) as entry:
                    found[name] = np.lib.format.read_array(entry, allow_pickle=False)
            else:
                found[name] = np.broadcast_to(np.zeros((), dtype), _channels_first_shape(shape, dtype))
    return found


def _guarded(file: Path, read: Callable[[BinaryIO], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What is read of a file; errors say what is wrong with it."""
    try:
        with open(file, "rb") as content:
            return read(content)
    except OSError as error:
        raise RunError("from_npz", f"{file} cannot be read: {error.strerror or error}.") from error
    except UserError:
        raise
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise UserError(
                "from_npz", f"{file} holds pickled Python objects, which are never loaded because that could run code."
            ) from None
        raise RunError("from_npz", f"{file} is damaged: {error}.") from None
    except Exception as error:  # zipfile, zlib and NumPy's header parser raise many types of errors on damaged files
        raise RunError("from_npz", f"{file} is damaged: {type(error).__name__}: {error}.") from None


def _arrays(
    file: Path, found: Mapping[str, np.ndarray], x: str, y: str, classes: Sequence[str] | None, groups: np.ndarray | None = None
) -> Arrays:  # fmt: skip
    missing = [name for name in (x, y) if name not in found]
    if missing:
        raise UserError(
            "from_npz", f"{file} has no {' and no '.join(missing)}; it has {', '.join(found) or 'nothing'}."
        )
    with errors_name_files("from_npz", file):
        return Arrays(channels_first(found[x]), _flat(found[y]), classes, file.stem, groups=groups)


@contextmanager
def errors_name_files(where: str, *files: str | os.PathLike[str]) -> Iterator[None]:
    """Add the file names to errors about the values read from them."""
    try:
        yield
    except UserError as error:
        raise UserError(where, f"{' and '.join(map(str, files))}: {error.message}") from None


def _flat(labels: np.ndarray) -> np.ndarray:
    """Integer labels of shape (n, 1) as (n,)."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 and labels.dtype.kind in "iu" else labels


def channels_first(images: np.ndarray) -> np.ndarray:
    """Convert uint8 arrays (N, H, W) and (N, H, W, C) to (N, C, H, W); other arrays are unchanged.

    >>> channels_first(np.zeros((5, 28, 28), np.uint8)).shape, channels_first(np.zeros((5, 32, 32, 3), np.uint8)).shape
    ((5, 1, 28, 28), (5, 3, 32, 32))
    """
    shape = _channels_first_shape(images.shape, images.dtype)
    if shape == images.shape:
        return images
    return images[:, None] if images.ndim == 3 else np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _channels_first_shape(shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    if dtype == np.uint8 and len(shape) == 3:
        return shape[0], 1, *shape[1:]
    if dtype == np.uint8 and len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
        return shape[0], shape[3], *shape[1:3]
    return shape
