"""The verb `dataset`: create, inspect, list and download datasets; dataset_versions.py makes new versions."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from .. import data
from ..data.catalogue import data_folder, fetch_known, is_available
from ..data.dataset_folder import describe, is_dataset_folder, newest_version, version_folders
from ..data.label_kinds import examples_by_split
from ..data.open import created_datasets_folder, data_path, is_image_source, same_name_note
from ..errors import UserError, WeftError
from ..hints import nearest
from ..jobs.datasets.create import CONVERSION, make_dataset
from ..jobs.job import MADE_IS_KEPT
from ..jobs.schema import Setting, flag
from .arguments import part, read
from .contents import Facts, bytes_of, of_images, of_splits, page, shown, size_text
from .dataset_doctor import doctor
from .dataset_versions import change, show_history
from .display import Display
from .progress import when_terminated
from .table import as_json, pairs, table

_JSON = Setting(flag, False, "print JSON, for programs")
_DATASETS = Setting(str, "datasets", "folder of the datasets of a studio")
_FROM = Setting(str, None, "folder with the files of a known dataset, for machines without network access")
CREATE = {
    **CONVERSION,
    "replace": Setting(flag, False, "replace a dataset that has other settings"),
    "json": _JSON,
}


def dataset(words: Sequence[str]) -> None:
    """Create, inspect and download datasets: weft dataset create photos photos-dataset size=64."""
    parts = {
        "create": _create, "info": _info, "list": _list, "get": _get, "change": change, "history": show_history,
        "doctor": doctor,
    }  # fmt: skip
    part("dataset", words, parts)


def _create(words: Sequence[str]) -> None:
    """Create a dataset from image files: weft dataset create SOURCE FOLDER size=64 validation=0.25.

    SOURCE is a folder of class folders, a .csv or .txt list of files with their labels, an .npz file, or a known dataset.
    """
    given = read("dataset create", words, CREATE, 2, _create.__doc__)
    if len(given.plain) != 2:
        raise UserError("weft dataset create", "a source and a folder are required: weft dataset create photos made.")
    source, folder = given.plain[0], Path(given.plain[1])
    if not os.path.exists(source) and source not in data.known_names():
        raise UserError("weft dataset create", f"there is no folder or list {source}.")
    settings = {"source": source, "folder": str(folder), **{name: given[name] for name in CONVERSION}}
    with Display() as display, when_terminated(MADE_IS_KEPT):
        make_dataset(
            settings, replace=given["replace"],
            progress=lambda now: display.bar(
                f"making {folder.name}", now.done, now.total, f"{now.failed} failed" if now.failed else ""
            ),
            unpacked=lambda done, total: display.bar(f"unpacking {source}", done, total),
        )  # fmt: skip
    found = of_splits(str(folder), data.open_dataset(folder), folder)
    print(as_json(found) if given["json"] else f"{page(found)}\n\ntrain on it: weft train data={quote(str(folder))}")


def _info(words: Sequence[str]) -> None:
    """Describe a dataset: weft dataset info digits, or a folder, or a file."""
    given = read("dataset info", words, {"from": _FROM, "json": _JSON}, 1, _info.__doc__)
    if not given.plain:
        raise UserError(
            "weft dataset info", "a dataset is required, got none: weft dataset info digits, or a folder, or a file."
        )
    found = _looked_at(given.plain[0], given["from"])
    print(as_json(found) if given["json"] else page(found))


def _looked_at(what: str, from_: str | None) -> Facts:
    """Facts about a dataset; image files are not packed."""
    path = data_path(what)
    if from_ is None and path is not None and is_image_source(path):
        return of_images(path)
    if note := same_name_note(what):
        print(note, file=sys.stderr)
    with Display() as display:
        splits = data.open_dataset(
            what, from_=from_, progress=lambda now: display.bar(f"getting {what}", now.done, now.total)
        )
    folder = None if path is None or from_ is not None else newest_version(path)
    return of_splits(what, splits, folder if folder is not None and is_dataset_folder(folder) else None)


def _list(words: Sequence[str]) -> None:
    """The datasets known by name, those created from image files, and those of a studio with their versions."""
    given = read("dataset list", words, {"datasets": _DATASETS, "json": _JSON}, 0, _list.__doc__)
    known = {name: is_available(name) for name in data.known_names()}
    made = [_made(folder) for folder in _made_folders()]
    place = Path(given["datasets"])
    studio = [_made(version, f"{version.parent.name} {version.name}") for version in _versions(place)]
    if given["json"]:
        print(as_json({"folder": str(data_folder()), "known": known, "made": made, "studio": studio}))
        return
    print(f"by name, in {data_folder()}")
    print(pairs({name: _state(name, here) for name, here in known.items()}))
    if made:
        print(f"\nmade of image files, in {created_datasets_folder()}\n{_table(made)}")
    if studio:
        print(f"\nin {place}\n{_table(studio)}")


def _state(name: str, here: bool) -> str:
    if name == "digits":
        return "built in"
    return "here" if here else f"not here; weft dataset get {name}"


def _made_folders() -> list[Path]:
    try:
        return sorted(
            folder
            for folder in created_datasets_folder().iterdir()
            if is_dataset_folder(folder) and folder.name[0] != "."
        )
    except OSError:  # nothing was created yet, or the folder is not readable
        return []


def _versions(place: Path) -> list[Path]:
    """The versions of the datasets in the folder of a studio."""
    folders = sorted(one for one in place.iterdir() if one.is_dir() and one.name[0] != ".") if place.is_dir() else []
    return [version for folder in folders for version in version_folders(folder)]


def _made(folder: Path, name: str = "") -> Facts:
    try:
        about = describe(folder)
    except WeftError as error:
        return {"name": name or folder.name, "folder": str(folder), "problem": error.message}
    splits = examples_by_split(about)
    return {
        "name": name or folder.name, "folder": str(folder), "splits": splits, "classes": len(about["classes"]),
        "shape": about["shape"], "bytes": bytes_of(folder),
    }  # fmt: skip


def _table(made: Sequence[Facts]) -> str:
    rows = []
    for one in made:
        row = ["", "", "", one.get("problem", "")]
        if "problem" not in one:
            shape = "x".join(map(str, one["shape"]))
            row = [str(sum(one["splits"].values())), str(one["classes"]), shape, size_text(one["bytes"])]
        rows.append([shown(one["name"]), *row])
    return table(["name", "examples", "classes", "shape", "size"], rows, ["name"])


def _get(words: Sequence[str]) -> None:
    """Download a known dataset: weft dataset get mnist, or from=FOLDER without network access."""
    given = read("dataset get", words, {"from": _FROM, "json": _JSON}, 1, _get.__doc__)
    if not given.plain:
        raise UserError(
            "weft dataset get", f"the name of a dataset is required, got none. Known: {', '.join(data.known_names())}."
        )
    name = given.plain[0]
    if name not in data.known_names():
        raise UserError("weft dataset get", f"there is no dataset {name!r}. {nearest(name, data.known_names())}")
    if name != "digits":
        with Display() as display:
            fetch_known(name, given["from"], lambda done, total: display.bar(f"getting {name}", done, total))
    found = of_splits(name, data.known(name))
    if given["json"]:
        print(as_json(found | {"folder": None if name == "digits" else str(data_folder() / name)}))
        return
    place = "is built in" if name == "digits" else f"is in {data_folder() / name}"
    print(f"{page(found)}\n\n{name} {place}; train on it: weft train {name}")
