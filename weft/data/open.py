"""`open_dataset` opens any dataset by name or by path and detects its format."""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import RunError, UserError
from ..hints import nearest
from .catalogue import check_writable, data_folder, known, known_names, read_idx_files
from .cifar import CIFAR10_FILES, CIFAR100_FILES, from_cifar
from .create import Progress, create
from .dataset import Splits
from .dataset_folder import is_dataset_folder, newest_version, open_dataset_folder, version_folders
from .npz import from_npz
from .texts import text

ProgressCallback = Callable[[Progress], None]
DEFAULT_SIZE = (128, 128)  # (height, width) of datasets created from image files
DEFAULT_LENGTH = 64  # tokens in a window of text
VALIDATION = 0.1  # of a text: its end
TEXT_SETTINGS = ("length", "stride", "tokenizer")
CREATE_SETTINGS = {
    name: parameter.default
    for name, parameter in inspect.signature(create).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in ("replace", "progress")
}  # the settings of `create` that determine the dataset's content, with their defaults


def open_dataset(
    what: str | os.PathLike[str],
    *,
    from_: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
    **settings: Any,
) -> Splits:
    """Open a dataset by name, folder or file. A name of the catalogue is that dataset: a folder digits is written ./digits.

    A dataset of the catalogue is downloaded once, or read from the folder `from_`. Folders written by `create` (of one
    with versions v1, v2, ..., the newest), folders with the files of CIFAR or MNIST, and .npz files are opened directly. Image files (a folder of class folders, a .csv
    or .txt list) are converted into a dataset once, in the subfolder `made` of the data folder, and converted again
    when they have changed; `settings` are those of `create`, with size=(128, 128) by default. Any other .txt file is a
    text, whose last tenth is the validation split; `length` is the window length, `stride` the distance of training windows, `tokenizer` what its tokens are (see `text`).
    `progress` is called with the number of files converted, or of bytes downloaded.

    >>> open_dataset("digits").train.shape
    (1, 8, 8)
    """
    given = _given_settings(settings)
    path = data_path(what)
    if from_ is not None or path is None:
        return _open_known(str(what), from_, progress, given)
    if is_image_source(path):
        return _open_images(path, given, progress)
    if path.is_dir():
        _check_allowed(path, "a folder of packed data", given, ())
        return _from_folder(path)
    if path.suffix.lower() == ".npz":
        _check_allowed(path, "a file of arrays", given, ())
        return from_npz(path)
    if path.suffix.lower() == ".txt":
        _check_allowed(path, "a text (its first line names no file)", given, TEXT_SETTINGS)
        return _open_text(
            path, given.get("length", DEFAULT_LENGTH), given.get("stride"), given.get("tokenizer", "characters")
        )
    raise UserError("open_dataset", f"the format must be a folder, .npz, .csv or .txt, got {path}.")


def data_path(what: str | os.PathLike[str]) -> Path | None:
    """The existing file or folder that `what` names; None of a dataset of the catalogue, whose name comes first, and of what does not exist.

    >>> data_path("digits") is None, data_path(".")
    (True, PosixPath('.'))
    """
    if isinstance(what, str) and what in known_names():
        return None
    path = Path(os.path.expanduser(what))
    return path if path.exists() else None


def same_name_note(what: str | os.PathLike[str]) -> str:
    """What to know of a name that a dataset of the catalogue and a file or folder have; nothing of others."""
    if isinstance(what, str) and what in known_names() and os.path.exists(what):
        return f"{what} is the dataset that weft knows by that name; the {'folder' if os.path.isdir(what) else 'file'} is ./{what}"
    return ""


def _open_known(
    name: str, from_: str | os.PathLike[str] | None, progress: ProgressCallback | None, given: Mapping[str, Any]
) -> Splits:
    if name in known_names():
        _check_allowed(name, "a known dataset", given, ())
        try:
            return known(name, from_=from_, report=None if progress is None else _byte_progress(progress))
        except RunError as error:  # the folder of that name may be what was meant
            note = same_name_note(name)
            if not note or from_ is not None:
                raise
            raise RunError(error.where, f"{error.message} {note}.") from error
    matches = difflib.get_close_matches(name, [*known_names(), *([] if from_ is not None else _siblings(name))], 1)
    hint = f" Did you mean {matches[0]!r}?" if matches else ""
    if from_ is not None:
        raise UserError(
            "open_dataset",
            f"from_ requires the name of a known dataset: one of {', '.join(known_names())}, got {name!r}.{hint}",
        )
    raise UserError(
        "open_dataset", f"{name!r} is neither a file, nor a folder, nor one of {', '.join(known_names())}.{hint}"
    )


def _siblings(path: str) -> list[str]:
    """Paths in the same folder, written in the same form as `path`."""
    try:
        return [os.path.join(os.path.dirname(path), name) for name in os.listdir(os.path.dirname(path) or ".")]
    except OSError:
        return []


def _byte_progress(progress: ProgressCallback) -> Callable[[int, int | None], None]:
    return lambda here, total: None if total is None else progress(Progress(here, total, 0))


def is_image_source(path: Path) -> bool:
    """Whether `path` is a source of image files, which `create` must convert before training."""
    if path.is_dir():
        return not _is_packed(path)
    kind = path.suffix.lower()
    return kind == ".csv" or (kind == ".txt" and _is_list(path))


def _is_packed(path: Path) -> bool:
    return is_dataset_folder(path) or bool(version_folders(path)) or _has_cifar(path) or _has_idx(path)


def _has_cifar(path: Path) -> bool:
    return any((path / files[0][0]).exists() for files in (CIFAR10_FILES, CIFAR100_FILES))


def _has_idx(path: Path) -> bool:
    return any(entry.is_file() for entry in path.glob("train-images*"))


def _from_folder(path: Path) -> Splits:
    if is_dataset_folder(newest_version(path)):
        return open_dataset_folder(newest_version(path))
    if _has_cifar(path):
        return from_cifar(path)
    name = path.resolve().name
    return known(name, from_=path) if name == "fashion-mnist" else read_idx_files(path, name)


# --- texts -----------------------------------------------------------------------------------------------------------


def _is_list(path: Path) -> bool:
    """Whether the first line that is not empty names a file, alone or before a label."""
    try:
        with open(path, "rb") as lines:
            first = next((line.strip() for line in lines if line.strip()), b"")
    except OSError as error:
        raise RunError("open_dataset", f"{path} cannot be read: {error.strerror or error}.") from error
    names = [os.fsdecode(name) for name in (first.removeprefix(b"\xef\xbb\xbf"), *first.rsplit(None, 1)[:1])]
    return any(name and os.path.isfile(path.parent / name) for name in names)


def _open_text(path: Path, length: int, stride: int | None, tokenizer: Any) -> Splits:
    found = text(path, length, tokenizer=tokenizer, learn_from=1 - VALIDATION, stride=stride)
    if int(len(found.ids) * VALIDATION) <= length:
        raise UserError(
            "open_dataset",
            f"the validation split, the last tenth of {path}, must be longer than a window of {length} tokens, got a "
            f"text of {len(found.ids)}. Use a smaller length.",
        )
    return found.split(VALIDATION)


# --- image files -----------------------------------------------------------------------------------------------------


def _open_images(path: Path, given: Mapping[str, Any], progress: ProgressCallback | None) -> Splits:
    """Open the dataset created from these image files and settings; create it if it is missing or out of date."""
    _check_allowed(path, "a source of image files", given, tuple(CREATE_SETTINGS))
    folder, settings = _cache_folder(path, given)
    check_writable(folder.parent)
    return create(os.path.abspath(path), folder, replace=True, progress=progress, **settings)


def created_dataset_folder(path: str | os.PathLike[str], **settings: Any) -> Path:
    """The folder of the dataset that `open_dataset` creates from these image files."""
    return _cache_folder(Path(path).expanduser(), _given_settings(settings))[0]


def _cache_folder(path: Path, given: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    settings = {**CREATE_SETTINGS, "size": DEFAULT_SIZE, **given}
    if isinstance(settings["size"], int):
        settings["size"] = (settings["size"], settings["size"])
    settings |= {split: _fraction_or_path(split, settings[split]) for split in ("validation", "test")}
    source = Path(os.path.abspath(path))  # the same dataset for every working directory
    name = source.name if source.is_dir() else source.stem
    return created_datasets_folder() / f"{name}-{_settings_digest(source, settings)}", settings


def created_datasets_folder() -> Path:
    """The parent folder of all datasets that `open_dataset` created."""
    return data_folder() / "made"


def _settings_digest(source: Path, settings: Mapping[str, Any]) -> str:
    """A digest of the source's path and of every setting that changes the dataset's content."""
    content = {name: value for name, value in settings.items() if name != "workers"}
    content_json = json.dumps([str(source), content], sort_keys=True, default=str)
    return hashlib.sha256(content_json.encode()).hexdigest()[:8]


def _fraction_or_path(split: str, value: Any) -> float | str:
    if isinstance(value, (str, os.PathLike)):
        return os.path.abspath(value)
    if not isinstance(value, (int, float)):
        raise UserError(
            "open_dataset",
            f"{split} must be a fraction or a path here, got {type(value).__name__}. Call weft.data.create for others.",
        )
    return float(value)


# --- settings --------------------------------------------------------------------------------------------------------


def _given_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not None, after checking their names."""
    names = (*CREATE_SETTINGS, *TEXT_SETTINGS)
    for name in settings:
        if name not in names:
            raise UserError("open_dataset", f"there is no setting {name!r}. {nearest(name, names)}")
    return {name: value for name, value in settings.items() if value is not None}


def _check_allowed(what: object, kind: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    wrong = [name for name in given if name not in allowed]
    if wrong:
        of_text = set(wrong) <= set(TEXT_SETTINGS)
        only = f"Only texts have a {wrong[0]}." if of_text else "These settings apply to image files only."
        note = same_name_note(str(what))
        raise UserError(
            "open_dataset",
            f"{what} is {kind}: {', '.join(wrong)} cannot be set for it. {only}{f' {note}.' if note else ''}",
        )
