"""One door to all data: `open_dataset` takes a name or a path and finds out what it is."""

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
from .cifar import CIFAR10_FILES, CIFAR100_FILES, from_cifar
from .create import Progress, create
from .dataset import Splits
from .known import check_writable, data_folder, known, known_names, read_idx_files
from .made import is_made, open_made
from .sources import from_npz
from .texts import text

Tell = Callable[[Progress], None]
DEFAULT_SIZE = (128, 128)  # of images that are made into a dataset on the way, when nobody says another
DEFAULT_LENGTH = 64  # of the windows of a text, likewise
MAKING = {
    name: parameter.default
    for name, parameter in inspect.signature(create).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name not in ("replace", "progress")
}  # the settings of `create` that say what is made, and their defaults


def open_dataset(
    what: str | os.PathLike[str],
    *,
    from_: str | os.PathLike[str] | None = None,
    progress: Tell | None = None,
    **making: Any,
) -> Splits:
    """The data behind a known name, a folder or a file. A path goes before a name: a folder called mnist is a folder.

    A known set is downloaded once, or read from the folder `from_`. Folders made by `create`, folders with the files of
    CIFAR or MNIST, and .npz files are opened. Image files (a folder of class folders, a .csv or .txt list) are made
    into a dataset once, in `made` in the folder for data, and made again when they have changed; `making` are settings
    of `create` for that, with size=(128, 128) if nobody says. Any other .txt is a text, whose last tenth is for
    validation; `length` says how long its windows are. `progress` is told of files made, or of bytes downloaded.

    >>> open_dataset("digits").train.shape
    (1, 8, 8)
    """
    given = _checked(making)
    path = Path(os.path.expanduser(what))
    if from_ is not None or not path.exists():
        return _by_name(str(what), from_, progress, given)
    if are_images(path):
        return _made(path, given, progress)
    if path.is_dir():
        _refuse(path, "a folder of packed data", given, ())
        return _from_folder(path)
    if path.suffix.lower() == ".npz":
        _refuse(path, "a file of arrays", given, ())
        return from_npz(path)
    if path.suffix.lower() == ".txt":
        _refuse(path, "a text (its first line names no file)", given, ("length",))
        return _text(path, given.get("length", DEFAULT_LENGTH))
    raise UserError("open_dataset", f"{path} is no data that weft knows: a folder, .npz, .csv or .txt.")


def _by_name(
    name: str, from_: str | os.PathLike[str] | None, progress: Tell | None, given: Mapping[str, Any]
) -> Splits:
    if name in known_names():
        _refuse(name, "a known set", given, ())
        return known(name, from_=from_, report=None if progress is None else _in_bytes(progress))
    near = difflib.get_close_matches(name, [*known_names(), *([] if from_ is not None else _beside(name))], 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    if from_ is not None:
        raise UserError(
            "open_dataset", f"from_ says where a known set lies: one of {', '.join(known_names())}, got {name!r}.{hint}"
        )
    raise UserError(
        "open_dataset", f"{name!r} is neither a file, nor a folder, nor one of {', '.join(known_names())}.{hint}"
    )


def _beside(path: str) -> list[str]:
    """What lies where the path leads, written as the path is."""
    try:
        return [os.path.join(os.path.dirname(path), name) for name in os.listdir(os.path.dirname(path) or ".")]
    except OSError:
        return []


def _in_bytes(progress: Tell) -> Callable[[int, int | None], None]:
    return lambda here, total: None if total is None else progress(Progress(here, total, 0))


def are_images(path: Path) -> bool:
    """Whether this is a source of image files, which must be packed before anything can learn from them."""
    if path.is_dir():
        return not _is_packed(path)
    kind = path.suffix.lower()
    return kind == ".csv" or (kind == ".txt" and _is_list(path))


def _is_packed(path: Path) -> bool:
    return is_made(path) or _has_cifar(path) or _has_idx(path)


def _has_cifar(path: Path) -> bool:
    return any((path / files[0][0]).exists() for files in (CIFAR10_FILES, CIFAR100_FILES))


def _has_idx(path: Path) -> bool:
    return any(entry.is_file() for entry in path.glob("train-images*"))


def _from_folder(path: Path) -> Splits:
    if is_made(path):
        return open_made(path)
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


def _text(path: Path, length: int) -> Splits:
    found = text(path, length)
    if len(found.ids) // 10 <= length:
        raise UserError(
            "open_dataset",
            f"the last tenth of {path} is for validation, and must be longer than a window of {length} characters: it has "
            f"{len(found.ids)} in all. Give a smaller length.",
        )
    return found.split(0.1)


# --- image files -----------------------------------------------------------------------------------------------------


def _made(path: Path, given: Mapping[str, Any], progress: Tell | None) -> Splits:
    """The dataset of these image files and settings, made if it is not there or not as new as they are."""
    _refuse(path, "a source of image files", given, tuple(MAKING))
    folder, settings = _place(path, given)
    check_writable(folder.parent)
    return create(os.path.abspath(path), folder, replace=True, progress=progress, **settings)


def place_of(path: str | os.PathLike[str], **making: Any) -> Path:
    """The folder of the dataset that `open_dataset` makes of these image files."""
    return _place(Path(path).expanduser(), _checked(making))[0]


def _place(path: Path, given: Mapping[str, Any]) -> tuple[Path, dict[str, Any]]:
    settings = {**MAKING, "size": DEFAULT_SIZE, **given}
    if isinstance(settings["size"], int):
        settings["size"] = (settings["size"], settings["size"])
    settings |= {split: _share(split, settings[split]) for split in ("validation", "test")}
    source = Path(os.path.abspath(path))  # so that it is the same dataset from wherever it is asked for
    name = source.name if source.is_dir() else source.stem
    return made_folder() / f"{name}-{_mark(source, settings)}", settings


def made_folder() -> Path:
    """Where the datasets lie that `open_dataset` has made."""
    return data_folder() / "made"


def _mark(source: Path, settings: Mapping[str, Any]) -> str:
    """What tells datasets apart: where the files are and all that changes what is made of them."""
    content = {name: value for name, value in settings.items() if name != "workers"}
    words = json.dumps([str(source), content], sort_keys=True, default=str)
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _share(split: str, value: Any) -> float | str:
    if isinstance(value, (str, os.PathLike)):
        return os.path.abspath(value)
    if not isinstance(value, (int, float)):
        raise UserError(
            "open_dataset",
            f"{split} is a share or a path here, got {type(value).__name__}. Call weft.data.create for others.",
        )
    return float(value)


# --- settings --------------------------------------------------------------------------------------------------------


def _checked(making: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that somebody set."""
    names = (*MAKING, "length")
    for name in making:
        if name not in names:
            raise UserError("open_dataset", f"there is no setting {name!r}. {nearest(name, names)}")
    return {name: value for name, value in making.items() if value is not None}


def _refuse(what: object, kind: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    wrong = [name for name in given if name not in allowed]
    if wrong:
        only = "Only texts have a length." if wrong == ["length"] else "They are settings of image files."
        raise UserError("open_dataset", f"{what} is {kind}: {', '.join(wrong)} cannot be set for it. {only}")
