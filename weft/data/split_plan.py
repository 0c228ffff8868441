"""Assigns files to splits before any file is opened: stratified, seeded, the same on every machine."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import UserError
from ..records import dataclass
from .file_index import Index
from .label_kinds import Label, LabelKind, label_list

Small = Literal["refuse", "drop", "keep"]
SPLITS = ("train", "validation", "test")


class Entry(NamedTuple):
    """One file of a split."""

    path: str
    name: str
    label: Label


@dataclass(frozen=True)
class SplitPlan:
    """The files of all splits, in the order in which they are stored."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, list[Entry]]
    passed_over: list[tuple[str, str]]
    kind: LabelKind = "class"

    def digest(self, settings: dict[str, Any]) -> str:
        """A digest of the settings, of the plan, and of the size and modification time of every file."""
        digest = hashlib.sha256(
            json.dumps([settings, self.name, self.classes, self.passed_over], sort_keys=True).encode()
        )
        for split, entries in self.splits.items():
            for entry in entries:
                digest.update(json.dumps([split, *entry, _file_state(entry.path)]).encode())
        return digest.hexdigest()


def make_plan(
    index: Index,
    shares: dict[str, float | Index],
    *,
    minimum: int,
    maximum: int | None,
    small: Small,
    seed: int,
) -> SplitPlan:
    """Split an index. `shares` gives for validation and test a fraction of each class, or an index of their own.

    Files with several classes or with numbers are one group: their splits are random, and no class is too small or too large.
    """
    if index.kind != "class":
        return _plan_of_one_group(index, shares, maximum, seed)
    passed_over = list(index.passed_over)
    classes = _kept_classes(index, minimum, small)
    parts: dict[str, list[Entry]] = {split: [] for split in SPLITS}
    fractions = {split: share for split, share in shares.items() if not isinstance(share, Index)}
    for label, name in enumerate(index.classes):
        members = np.flatnonzero(index.labels == label)
        if name not in classes:
            passed_over += [(index.names[i], f"its class {name!r} has fewer than {minimum} files") for i in members]
            continue
        chosen = np.random.default_rng([seed, label]).permutation(members)
        most = len(chosen) if maximum is None else maximum
        passed_over += [(index.names[i], f"its class has more than {maximum} files") for i in chosen[most:]]
        for split, numbers in split_class(chosen[:most], fractions).items():
            parts[split] += [Entry(index.paths[i], index.names[i], classes.index(name)) for i in numbers]
    for split, share in shares.items():
        if isinstance(share, Index):
            parts[split] = _separate_split(share, split, classes, passed_over)
    _check_disjoint(parts)
    return SplitPlan(index.name, classes, {s: _shuffled(parts[s], seed, s) for s in SPLITS if parts[s]}, passed_over)


def _plan_of_one_group(index: Index, shares: dict[str, float | Index], maximum: int | None, seed: int) -> SplitPlan:
    if maximum is not None:
        raise UserError("create", "maximum= is a number of files of each class: it requires files with one class each.")
    passed_over, labels = list(index.passed_over), label_list(index.labels)
    fractions = {split: share for split, share in shares.items() if not isinstance(share, Index)}
    chosen = np.random.default_rng([seed, 0]).permutation(len(index))
    parts = {
        split: [Entry(index.paths[i], index.names[i], labels[i]) for i in numbers.tolist()]
        for split, numbers in split_class(chosen, fractions).items()
    }
    for split, share in shares.items():
        if isinstance(share, Index):
            if (
                share.kind != index.kind
                or share.classes != index.classes
                or share.labels.shape[1:] != index.labels.shape[1:]
            ):
                raise UserError("create", f"the {split} files must have labels like those of the training files.")
            passed_over += [(name, f"{reason} (of the {split} files)") for name, reason in share.passed_over]
            parts[split] = list(map(Entry, share.paths, share.names, label_list(share.labels)))
    _check_disjoint(parts)
    splits = {split: _shuffled(parts[split], seed, split) for split in SPLITS if parts.get(split)}
    return SplitPlan(index.name, index.classes, splits, passed_over, index.kind)


def _kept_classes(index: Index, minimum: int, small: Small) -> tuple[str, ...]:
    too_small = [f"{name} ({count})" for name, count in index.counts().items() if count < minimum]
    if too_small and small == "refuse":
        raise UserError(
            "create",
            f"each class needs {minimum} files or more, got {', '.join(too_small[:20])}{' ...' if len(too_small) > 20 else ''}. "
            'Add images, lower `minimum`, or pass small="drop" or small="keep".',
        )
    kept = tuple(name for name, count in index.counts().items() if count >= minimum or small == "keep")
    if not kept or not len(index):
        raise UserError("create", f"at least one class must remain for training, {index.name} has none.")
    return kept


def split_class(members: np.ndarray, fractions: dict[str, float]) -> dict[str, np.ndarray]:
    """Split one class by rounded fractions; the rest, at least one file, is for training."""
    taken, left = {}, len(members)
    for split, share in fractions.items():
        number = min(int(len(members) * share + 0.5), max(left - 1, 0))
        taken[split] = members[left - number : left]
        left -= number
    return {"train": members[:left], **taken}


def _separate_split(
    index: Index, split: str, classes: tuple[str, ...], passed_over: list[tuple[str, str]]
) -> list[Entry]:
    unknown = sorted(name for name, count in index.counts().items() if count and name not in classes)
    if unknown:
        raise UserError("create", f"the {split} files have classes without training files: {', '.join(unknown)}.")
    passed_over += [(name, f"{reason} (of the {split} files)") for name, reason in index.passed_over]
    rows = zip(index.paths, index.names, index.labels.tolist(), strict=True)
    return [Entry(path, name, classes.index(index.classes[label])) for path, name, label in rows]


def _check_disjoint(parts: dict[str, list[Entry]]) -> None:
    seen: dict[str, str] = {}
    for split, entries in parts.items():
        for entry in entries:
            other = seen.setdefault(os.path.realpath(entry.path), split)
            if other != split:
                raise UserError(
                    "create", f"{entry.name} is in two splits, {other} and {split}. Splits must be disjoint."
                )


def _shuffled(entries: list[Entry], seed: int, split: str) -> list[Entry]:
    order = np.random.default_rng([seed, 1 + SPLITS.index(split), len(entries)]).permutation(len(entries))
    return [entries[i] for i in order]


def _file_state(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns]
