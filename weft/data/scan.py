"""Inspects a source of images before a dataset is made of it: how many files, which classes, which sizes. Bounded in files and time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

from ..errors import UserError
from ..records import dataclass
from .catalogue import known, known_names
from .dataset import Splits
from .file_index import Index
from .file_lists import from_list
from .folders import split_folders
from .images import Unreadable, image_size
from .label_kinds import LabelKind, kind_of
from .npz import outline_npz

MOST_FILES = 200_000
MOST_SECONDS = 5.0
LOOKED_AT = 48  # files whose headers are read, spread over all of them


@dataclass(frozen=True)
class SourceScan:
    """What is known of a source. `complete` is false where the bounds were reached: there are more files."""

    images: int
    classes: dict[str, int]
    samples: tuple[str, ...] = ()  # image files, spread over the source
    sizes: tuple[tuple[int, int], ...] = ()  # (height, width) of the samples
    unreadable: tuple[tuple[str, str], ...] = ()  # of the files looked at: name and reason
    looked_at: int = 0
    splits: dict[str, int] = field(default_factory=dict)  # examples of the splits that the source has itself
    labels: LabelKind = "class"
    complete: bool = True
    channels: int | None = None  # of arrays, which have one size; None for image files

    @property
    def size_range(self) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """The smallest and the largest image looked at, by area."""
        ordered = sorted(self.sizes, key=lambda size: size[0] * size[1])
        return (ordered[0], ordered[-1]) if ordered else None


def scan_source(source: str | os.PathLike[str], labels: LabelKind = "class", outside: bool = False) -> SourceScan:
    """Look at a folder of class folders, a list, an .npz file or a known dataset."""
    path = Path(source)
    if str(source) in known_names():
        return _of_splits(known(str(source)))
    if path.suffix.lower() == ".npz" and path.is_file():
        return _of_splits(outline_npz(path))
    if path.is_dir():
        return _of_folder(path)
    if not path.exists():
        raise UserError("scan", f"source must be a folder or file that exists, got {path}.")
    return _of_index(from_list(path, labels=labels, outside=outside))


def _of_splits(splits: Splits) -> SourceScan:
    parts = {split: part for split, part in splits._asdict().items() if part is not None}
    train = splits.train
    counts = [part.counts() for part in parts.values()]
    classes = {name: sum(count[name] for count in counts) for name in train.classes}
    numbers = {split: len(part) for split, part in parts.items()}
    sizes = ((train.shape[1], train.shape[2]),) if len(train.shape) == 3 else ()
    return SourceScan(
        sum(numbers.values()), classes, sizes=sizes, splits=numbers if len(numbers) > 1 else {}, labels=kind_of(train.labels[:1]),
        channels=train.shape[0] if sizes else None,
    )  # fmt: skip


def _of_index(index: Index) -> SourceScan:
    samples = _spread(list(index.paths))
    return _with_samples(SourceScan(len(index), index.counts(), labels=index.kind), samples)


def _of_folder(path: Path) -> SourceScan:
    """Count the files of a folder of class folders, or of its train, validation and test folders."""
    parts = split_folders(path) or {"": path}
    limit = time.monotonic() + MOST_SECONDS
    counts: dict[str, int] = {}
    splits: dict[str, int] = {}
    files: list[str] = []
    complete = True
    for split, folder in parts.items():
        for entry in sorted(_folders(folder), key=lambda one: one.name):
            for file in _files(entry.path):
                if len(files) >= MOST_FILES or time.monotonic() > limit:
                    complete = False
                    break
                counts[entry.name] = counts.get(entry.name, 0) + 1
                splits[split] = splits.get(split, 0) + 1
                files.append(file)
    if not counts:
        raise UserError(
            "scan",
            f"source must hold class folders, got {path} without any. Put the images of each class into a folder with its name.",
        )
    found = SourceScan(len(files), counts, splits={} if "" in splits else splits, complete=complete)
    return _with_samples(found, _spread(files))


def _with_samples(found: SourceScan, samples: list[str]) -> SourceScan:
    sizes, good, wrong = [], [], []
    for path in samples:
        try:
            sizes.append(image_size(path))
            good.append(path)
        except Unreadable as reason:
            wrong.append((os.path.basename(path), str(reason)))
    return SourceScan(
        found.images, found.classes, tuple(good), tuple(sizes), tuple(wrong), len(samples), found.splits, found.labels,
        found.complete,
    )  # fmt: skip


def _spread(files: list[str]) -> list[str]:
    step = max(1, len(files) // LOOKED_AT)
    return files[step // 2 :: step][:LOOKED_AT]


def _folders(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [one for one in entries if one.is_dir() and not one.name.startswith(".")]


def _files(folder: str) -> Iterator[str]:
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                found = [one for one in entries if not one.name.startswith(".")]
        except OSError:  # `create` lists it as passed over
            continue
        waiting += [one.path for one in found if one.is_dir(follow_symlinks=False)]
        yield from sorted(one.path for one in found if one.is_file())
