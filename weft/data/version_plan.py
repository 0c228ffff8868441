"""Plans a new version of a dataset: which images of the parent and which new files go into which split, under which label."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from ..records import dataclass
from .changes import WHERE, DatasetChanges
from .convert import ConversionOptions
from .create import plan_source
from .dataset_folder import VERSION, describe, open_packed
from .image_names import read_names
from .image_readers import PackedImages
from .label_kinds import LabelKind, NamedLabel, label_list, label_of_text, named, renamed
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
        packed = {split: open_packed(folder, split, about) for split in about["counts"]}
        names = {split: read_names(folder / split, len(labels)) for split, (_, labels) in packed.items()}
        return cls(folder, about, {s: p[0] for s, p in packed.items()}, {s: p[1] for s, p in packed.items()}, names)

    @property
    def kind(self) -> LabelKind:
        found: LabelKind = self.about.get("labels", "class")
        return found

    def named_labels(self, split: str) -> list[NamedLabel]:
        """The label of each image of a split."""
        return named(label_list(self.labels[split]), self.kind, self.about["classes"])

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
    label_of: dict[str, list[NamedLabel]]  # the new label of each image of the parent
    added: SplitPlan | None
    rename: Mapping[str, str]
    digest: str

    @property
    def train_is_unchanged(self) -> bool:
        """Whether the training images are those of the parent, so that their statistics are too."""
        into = [chunk for chunk in self.copies if chunk.split == "train"]
        same = all(chunk.source == "train" for chunk in into) and not any(c.split == "train" for c in self.files)
        return same and sum(len(chunk.rows) for chunk in into) == len(self.label_of["train"])

    def label_of_file(self, entry: Entry) -> NamedLabel:
        assert self.added is not None
        (label,) = named([entry.label], self.added.kind, self.added.classes)
        return renamed(label, self.rename)


# --- planning ----------------------------------------------------------------------------------------------------------


def plan_version(parent: Parent, changes: DatasetChanges) -> VersionPlan:
    about = parent.about
    changes.check({split: len(labels) for split, labels in parent.labels.items()}, about["classes"], parent.kind)
    added = _plan_added(parent, changes.add) if changes.add is not None else None
    places = _places(parent, changes)
    label_of = {split: _new_labels(parent, split, changes) for split in parent.labels}
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
    plan = VersionPlan(copies, files, label_of, added, changes.rename, hashlib.sha256(text.encode()).hexdigest())
    check_training_labels(image_rows(parent, plan, []), parent.kind)
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


def _new_labels(parent: Parent, split: str, changes: DatasetChanges) -> list[NamedLabel]:
    labels = parent.named_labels(split)
    for row, text in changes.relabel.get(split, {}).items():
        new = label_of_text(text, parent.kind)
        if parent.kind == "numbers":
            _check_numbers(len(new), len(labels[row]), "relabel")
        labels[row] = new
    return [renamed(label, changes.rename) for label in labels]


def _check_numbers(count: int, wanted: int, change: str) -> None:
    if count != wanted:
        raise UserError(WHERE, f"{change} needs labels of {wanted} numbers as the dataset has them, got {count}.")


def _plan_added(parent: Parent, source: str) -> SplitPlan:
    """The files to add. They are split by the fractions of the parent; without such, all are for training."""
    if not os.path.exists(source):
        raise UserError(WHERE, f"add must be a folder of class folders or a list of files, there is no {source}.")
    settings = parent.about["settings"]
    shares = [value if isinstance(value, float) else 0.0 for value in (settings["validation"], settings["test"])]
    kind = parent.kind
    if kind != "class" and os.path.isdir(source):
        raise UserError(
            WHERE,
            f"add must be a .csv or .txt list of files for a dataset with labels={kind}, got the folder {source}.",
        )
    plan, _ = plan_source(
        source, *shares, labels=kind, minimum=0, maximum=None, small="keep", seed=settings["seed"]
    )  # fmt: skip
    if kind == "numbers":
        first = next(entry.label for entries in plan.splits.values() for entry in entries)
        _check_numbers(len(tuple(first)), parent.labels["train"][:1].size, "add")  # type: ignore[arg-type]
    return plan


def _parts(values: list[Any], size: int, most: int) -> Iterator[list[Any]]:
    step = max(1, min(most, CHUNK_BYTES // size))
    yield from (values[start : start + step] for start in range(0, len(values), step))


class ImageRow(NamedTuple):
    split: str
    name: str
    label: NamedLabel


def image_rows(parent: Parent, plan: VersionPlan, done: list[dict[str, Any]]) -> list[ImageRow]:
    """Split, name and label of each image, in the order in which they are stored. Files that failed are left out."""
    rows = [
        ImageRow(chunk.split, parent.names[chunk.source][row], plan.label_of[chunk.source][row])
        for chunk in plan.copies
        for row in chunk.rows
    ]
    for number, chunk in enumerate(plan.files, len(plan.copies)):
        failed = done[number]["failed"] if done else {}
        good = [entry for place, entry in enumerate(chunk.entries) if str(place) not in failed]
        rows += [ImageRow(chunk.split, entry.name, plan.label_of_file(entry)) for entry in good]
    return rows


def check_training_labels(rows: Sequence[ImageRow], kind: LabelKind) -> None:
    """Images for training must remain, of each class that there is."""
    if not any(row.split == "train" for row in rows):
        raise UserError(WHERE, "at least one image must remain for training, the changes leave none.")
    if kind == "numbers":
        return
    trained = {name for row in rows if row.split == "train" for name in row.label}
    lost = sorted({str(name) for row in rows for name in row.label if name not in trained})
    if lost:
        raise UserError(
            WHERE,
            f"each class needs an image in train, the changes leave none of {', '.join(lost)}. "
            "Move an image there, or remove or relabel those in the other splits.",
        )
