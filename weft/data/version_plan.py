"""Plans a new version of a dataset: which images of the parent and which new files go into which split, under which class."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from .changes import WHERE, DatasetChanges
from .convert import ConversionOptions
from .create import plan_source
from .dataset_folder import VERSION, describe, open_packed
from .image_names import read_names
from .image_readers import PackedImages
from .split_plan import SPLITS, Entry, SplitPlan

CHUNK_BYTES, _COPIED, _CONVERTED = 1 << 24, 1024, 64  # a chunk: its bytes, and its images at most


@dataclass(frozen=True)
class Parent:
    """The dataset that changes."""

    folder: Path
    about: dict[str, Any]
    images: dict[str, PackedImages]
    labels: dict[str, np.ndarray]
    names: dict[str, list[str]]

    @classmethod
    def open(cls, folder: Path) -> Parent:
        about = describe(folder)
        if about.get("labels", "class") != "class":
            raise UserError(
                WHERE,
                f"a dataset with one class for each image is required, got {folder} with labels={about['labels']}.",
            )
        packed = {split: open_packed(folder, split, about) for split in about["counts"]}
        names = {split: read_names(folder / split, len(labels)) for split, (_, labels) in packed.items()}
        return cls(folder, about, {s: p[0] for s, p in packed.items()}, {s: p[1] for s, p in packed.items()}, names)

    @property
    def options(self) -> ConversionOptions:
        fields = ConversionOptions.__dataclass_fields__
        return ConversionOptions.from_json({n: v for n, v in self.about["settings"].items() if n in fields})


class Copies(NamedTuple):
    """Images of one split of the parent, in a split of the new version."""

    split: str
    source: str
    rows: list[int]


class Files(NamedTuple):
    """New files in a split of the new version."""

    split: str
    entries: list[Entry]


@dataclass(frozen=True)
class VersionPlan:
    copies: list[Copies]
    files: list[Files]
    class_of: dict[str, dict[int, str]]  # the new class of each image of the parent
    added: SplitPlan | None
    rename: Mapping[str, str]
    digest: str

    @property
    def train_is_unchanged(self) -> bool:
        """Whether the training images are those of the parent, so that their statistics are too."""
        into = [chunk for chunk in self.copies if chunk.split == "train"]
        same = all(chunk.source == "train" for chunk in into) and not any(c.split == "train" for c in self.files)
        return same and sum(len(chunk.rows) for chunk in into) == len(self.class_of["train"])

    def class_of_file(self, entry: Entry) -> str:
        assert self.added is not None
        assert isinstance(entry.label, int)
        name = self.added.classes[entry.label]
        return self.rename.get(name, name)


# --- planning ----------------------------------------------------------------------------------------------------------


def plan_version(parent: Parent, changes: DatasetChanges) -> VersionPlan:
    about = parent.about
    changes.check({split: len(labels) for split, labels in parent.labels.items()}, about["classes"])
    added = _plan_added(parent, changes.add) if changes.add is not None else None
    places = _places(parent, changes)
    class_of = {split: _new_classes(parent, split, changes) for split in parent.labels}
    options = parent.options
    size = int(np.prod(options.shape))
    copies = [
        Copies(target, source, rows)
        for (target, source), all_rows in places.items()
        for rows in _parts(all_rows, size, _COPIED)
    ]
    files = [
        Files(split, entries)
        for split, all_entries in (added.splits if added else {}).items()
        for entries in _parts(all_entries, size, _CONVERTED)
    ]
    text = json.dumps(
        [VERSION, about["digest"], changes.as_json(), added.digest({}) if added else None], sort_keys=True
    )
    plan = VersionPlan(copies, files, class_of, added, changes.rename, hashlib.sha256(text.encode()).hexdigest())
    check_training_classes(image_rows(parent, plan, []))
    return plan


def _places(parent: Parent, changes: DatasetChanges) -> dict[tuple[str, str], list[int]]:
    """The rows that go into each split, by the split they come from: those that stay first."""
    found: dict[tuple[str, str], list[int]] = {}
    pairs = sorted(
        ((t, s) for t in SPLITS for s in parent.labels), key=lambda pair: (SPLITS.index(pair[0]), pair[0] != pair[1])
    )
    for target, source in pairs:
        removed, moved = set(changes.remove.get(source, ())), changes.move.get(source, {})
        rows = [r for r in range(len(parent.labels[source])) if r not in removed and moved.get(r, source) == target]
        if rows:
            found[target, source] = rows
    return found


def _new_classes(parent: Parent, split: str, changes: DatasetChanges) -> dict[int, str]:
    classes, relabelled = parent.about["classes"], changes.relabel.get(split, {})
    names = (relabelled.get(row, classes[label]) for row, label in enumerate(parent.labels[split].tolist()))
    return {row: changes.rename.get(name, name) for row, name in enumerate(names)}


def _plan_added(parent: Parent, source: str) -> SplitPlan:
    """The files to add. They are split by the fractions of the parent; without such, all are for training."""
    if not os.path.exists(source):
        raise UserError(WHERE, f"add must be a folder of class folders or a list of files, there is no {source}.")
    settings = parent.about["settings"]
    shares = [value if isinstance(value, float) else 0.0 for value in (settings["validation"], settings["test"])]
    return plan_source(source, *shares, minimum=0, maximum=None, small="keep", seed=settings["seed"])[0]


def _parts(values: list[Any], size: int, most: int) -> Iterator[list[Any]]:
    step = max(1, min(most, CHUNK_BYTES // size))
    yield from (values[start : start + step] for start in range(0, len(values), step))


class ImageRow(NamedTuple):
    split: str
    name: str
    of_class: str


def image_rows(parent: Parent, plan: VersionPlan, done: list[dict[str, Any]]) -> list[ImageRow]:
    """Split, name and class of each image, in the order in which they are stored. Files that failed are left out."""
    rows = [
        ImageRow(chunk.split, parent.names[chunk.source][row], plan.class_of[chunk.source][row])
        for chunk in plan.copies
        for row in chunk.rows
    ]
    for number, chunk in enumerate(plan.files, len(plan.copies)):
        failed = done[number]["failed"] if done else {}
        good = [entry for place, entry in enumerate(chunk.entries) if str(place) not in failed]
        rows += [ImageRow(chunk.split, entry.name, plan.class_of_file(entry)) for entry in good]
    return rows


def check_training_classes(rows: Sequence[ImageRow]) -> None:
    trained = {row.of_class for row in rows if row.split == "train"}
    if not trained:
        raise UserError(WHERE, "at least one image must remain for training, the changes leave none.")
    lost = sorted({row.of_class for row in rows} - trained)
    if lost:
        raise UserError(
            WHERE,
            f"each class needs an image in train, the changes leave none of {', '.join(lost)}. "
            "Move an image there, or remove or relabel those in the other splits.",
        )
