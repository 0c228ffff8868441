"""Jobs that create datasets: from image files, lists, arrays or a known dataset to a dataset folder, with events on the way."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ... import data
from ...data.catalogue import known_names
from ...data.create import Source, check_create_settings
from ...data.dataset_folder import describe, is_dataset_folder
from ...data.image_files import write_image_files
from ...data.label_kinds import LABELS, examples_by_split, kind_of
from ...data.open import CREATE_SETTINGS, is_image_source
from ...data.resize import WAYS
from ...errors import UserError
from ..events import Event, Listener
from ..queue.job_queue import JobQueue
from ..queue.kinds import DATASET
from ..queue.record import JobRecord
from ..schema import Setting, flag, fraction_or_path, sizes, validated, whole

PROGRESS_SECONDS = 1.0  # between two activity events, which are kept on disk
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_READERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "size": (sizes, "image size, 64 or 48x64 (height x width); none: all have one size already"),
    "resize": (str, "how images are resized"),
    "colour": (str, "colour of the images"),
    "labels": (str, "labels of a list: one class a file, several classes, or numbers (regression)"),
    "validation": (fraction_or_path, "fraction of every class, or a folder or list of files"),
    "test": (fraction_or_path, "likewise"),
    "minimum": (whole, "minimum number of files of a class"),
    "maximum": (whole, "maximum number of files of a class"),
    "small": (str, "what to do with classes below the minimum"),
    "seed": (whole, "seed of the splits and of the order"),
    "store": (str, "arrays (fast) or lmdb (small)"),
    "encoding": (str, "encoding of images in lmdb: png (lossless) or jpeg"),
    "workers": (whole, "worker processes; 0: none"),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "resize": tuple(WAYS),
    "colour": ("rgb", "gray"),
    "labels": LABELS,
    "small": ("refuse", "drop", "keep"),
    "store": ("arrays", "lmdb"),
    "encoding": ("png", "jpeg"),
}
# How `weft.data.create` converts; the command line takes these too.
CONVERSION: dict[str, Setting] = {
    **{
        name: Setting(reader, CREATE_SETTINGS[name], meaning, choices=_CHOICES.get(name, ()))
        for name, (reader, meaning) in _READERS.items()
    },
    "outside": Setting(flag, False, "allow lists to name files outside of their folder"),
}
DATASET_SETTINGS: dict[str, Setting] = {
    "source": Setting(
        str, None, "folder of class folders, .csv or .txt list, .npz file, or the name of a known dataset"
    ),
    "folder": Setting(str, None, "folder of the new dataset"),
    "name": Setting(str, None, "name of the dataset, for lists of jobs; default: its folder"),
    "discard": Setting(str, None, "folder to delete when the dataset exists: that of an upload"),
    "runs": Setting(str, "runs", "folder of the queue"),
    **CONVERSION,
}


def submit_dataset(queue: JobQueue, given: Mapping[str, Any], owner: str = "") -> JobRecord:
    """Check the settings of a new dataset and add its creation to the queue.

    >>> import tempfile
    >>> queue = JobQueue(tempfile.mkdtemp())
    >>> submit_dataset(queue, {"source": "digits", "folder": f"{queue.root}/digits/v1", "size": 8, "colour": "gray"}).kind
    'dataset'
    """
    settings = checked_dataset_settings(given)
    _check_free(queue, Path(settings["folder"]))
    name = settings["name"] or Path(settings["folder"]).name
    return queue.add({**settings, "name": name}, DATASET, owner=owner)


def checked_dataset_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a new dataset; what is missing or cannot be used is an error. No image is opened."""
    settings = validated("dataset", given, DATASET_SETTINGS)
    for name in ("source", "folder"):
        if not settings[name]:
            raise UserError("dataset", f"{name} is required, got none.")
        if name != "source" or settings[name] not in known_names():
            settings[name] = os.path.abspath(os.path.expanduser(settings[name]))
    for split in ("validation", "test"):
        if isinstance(settings[split], str):
            settings[split] = os.path.abspath(os.path.expanduser(settings[split]))
    check_create_settings({name: settings[name] for name in CREATE_SETTINGS})
    if settings["source"] not in known_names():
        _check_source(Path(settings["source"]), settings["labels"])
    return settings


def check_dataset_name(name: str) -> str:
    """A name that is a folder name everywhere; others are rejected."""
    if not _NAME.fullmatch(name) or name in known_names():
        why = "the name of a known dataset" if name in known_names() else repr(name)
        raise UserError(
            "dataset", f"name must have letters, digits, dots, dashes and underscores, got {why}. Try photos-2."
        )
    return name


def _check_source(path: Path, labels: str) -> None:
    if not path.exists():
        raise UserError(
            "dataset", f"source must be a folder or file that exists, or one of {', '.join(known_names())}."
        )
    if path.is_file() and path.suffix.lower() not in (".npz", ".csv", ".txt"):
        raise UserError("dataset", f"source must be a folder, a .csv or .txt list, or an .npz file, got {path.name}.")
    if path.is_dir() and labels != "class":
        raise UserError("dataset", f"labels {labels} requires a .csv or .txt list of files, got the folder {path}.")
    if path.is_dir() and not is_image_source(path):
        raise UserError(
            "dataset",
            f"source must be image files, got {path}, a dataset already. Make a new version of it, or train on it.",
        )


def _check_free(queue: JobQueue, folder: Path) -> None:
    if is_dataset_folder(folder):
        raise UserError("dataset", f"folder must be new, got {folder}, which exists. Choose another name.")
    for job in queue.jobs():
        if not job.state.has_ended and job.readable_settings.get("folder") == str(folder):
            raise UserError("dataset", f"folder must be new, got {folder}, which {job} creates. Choose another name.")


# --- the work of the job ----------------------------------------------------------------------------------------------------


def create_dataset(settings: Mapping[str, Any], run: Path | None, listener: Listener) -> None:
    """Create the dataset of a job. Started again after an interruption, it continues where it was."""
    known = validated("dataset", settings, DATASET_SETTINGS)
    report = _Progress(known["name"], listener)
    report.activity(f"reading {Path(known['source']).name}")
    folder = make_dataset(known, report, report.written)
    if known["discard"]:
        shutil.rmtree(known["discard"], ignore_errors=True)
    about = describe(folder)
    facts = {"folder": str(folder), "images": sum(examples_by_split(about).values()), "failed": about["failed"]}
    listener(Event("dataset", facts, round(time.time(), 3)))


def make_dataset(
    settings: Mapping[str, Any],
    progress: Callable[[data.Progress], None],
    unpacked: Callable[[int, int], None] | None = None,
    replace: bool = False,
) -> Path:
    """Create a dataset in settings["folder"]. Arrays (an .npz file, a known dataset) are written as image files first, then converted."""
    folder, path = Path(settings["folder"]), Path(settings["source"])
    files = folder.parent / f".{folder.name}.files"
    options = {name: settings[name] for name in CREATE_SETTINGS}
    source: Source = path
    if is_arrays(settings["source"]):
        parts = write_image_files(data.open_dataset(settings["source"]), files, unpacked)
        source = parts.pop("train")
        options |= parts | {
            "labels": "class" if source.is_dir() else kind_of(data.open_dataset(settings["source"]).train.labels[:1])
        }
    elif settings["outside"] and path.is_file():
        source = data.from_list(path, outside=True, labels=settings["labels"])
    data.create(source, folder, replace=replace, progress=progress, **options)
    shutil.rmtree(files, ignore_errors=True)
    return folder


def is_arrays(source: str) -> bool:
    """Whether a source holds arrays, not image files."""
    return source in known_names() or (Path(source).suffix.lower() == ".npz" and os.path.exists(source))


class _Progress:
    """Sends how far a creation is: progress to those who watch, and once a second what it does."""

    def __init__(self, name: str | None, listener: Listener) -> None:
        self.name, self.listener, self.last = name or "the dataset", listener, 0.0

    def __call__(self, now: data.Progress) -> None:
        self._send("making", now.done, now.total, now.failed)

    def written(self, done: int, total: int) -> None:
        self._send("unpacking", done, total, 0)

    def activity(self, text: str) -> None:
        self.listener(Event("activity", {"text": text}, round(time.time(), 3)))

    def _send(self, what: str, done: int, total: int, failed: int) -> None:
        facts = {"what": f"{what} {self.name}", "done": done, "total": total, "failed": failed}
        self.listener(Event("progress", facts, round(time.time(), 3)))
        if time.monotonic() - self.last >= PROGRESS_SECONDS:
            self.last = time.monotonic()
            self.activity(f"{what} {self.name}: {done:,} of {total:,} files")
