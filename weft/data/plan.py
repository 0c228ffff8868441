"""Decides which file goes into which split, before any is opened: stratified, seeded, the same on every machine."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ..errors import UserError
from .index import Index

Small = Literal["refuse", "drop", "keep"]
SPLITS = ("train", "validation", "test")


class Entry(NamedTuple):
    """One file of a split."""

    path: str
    name: str
    label: int


@dataclass(frozen=True)
class Plan:
    """All files of all splits, in the order in which they will be stored."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, list[Entry]]
    passed_over: list[tuple[str, str]]

    def digest(self, settings: dict[str, Any]) -> str:
        """Changes with the settings, with what is in the plan, and with every file that was written to since."""
        sum_ = hashlib.sha256(
            json.dumps([settings, self.name, self.classes, self.passed_over], sort_keys=True).encode()
        )
        for split, entries in self.splits.items():
            for entry in entries:
                sum_.update(json.dumps([split, *entry, _state(entry.path)]).encode())
        return sum_.hexdigest()


def make_plan(
    index: Index,
    shares: dict[str, float | Index],
    *,
    minimum: int,
    maximum: int | None,
    small: Small,
    seed: int,
) -> Plan:
    """Divide an index: `shares` says for validation and test how much of each class, or which files of their own."""
    passed_over = list(index.passed_over)
    classes = _large_enough(index, minimum, small)
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
        for split, numbers in divided(chosen[:most], fractions).items():
            parts[split] += [Entry(index.paths[i], index.names[i], classes.index(name)) for i in numbers]
    for split, share in shares.items():
        if isinstance(share, Index):
            parts[split] = _own(share, split, classes, passed_over)
    _refuse_overlap(parts)
    return Plan(index.name, classes, {s: _shuffled(parts[s], seed, s) for s in SPLITS if parts[s]}, passed_over)


def _large_enough(index: Index, minimum: int, small: Small) -> tuple[str, ...]:
    few = [f"{name} ({count})" for name, count in index.counts().items() if count < minimum]
    if few and small == "refuse":
        raise UserError(
            "create",
            f"each class needs {minimum} files or more, got {', '.join(few[:20])}{' ...' if len(few) > 20 else ''}. "
            'Add images, lower `minimum`, or say small="drop" or small="keep".',
        )
    kept = tuple(name for name, count in index.counts().items() if count >= minimum or small == "keep")
    if not kept or not len(index):
        raise UserError("create", f"no class of {index.name} is left to learn.")
    return kept


def divided(members: np.ndarray, fractions: dict[str, float]) -> dict[str, np.ndarray]:
    """So much of a class for each split, rounded; what is left is for training, and something always is."""
    taken, left = {}, len(members)
    for split, share in fractions.items():
        number = min(int(len(members) * share + 0.5), max(left - 1, 0))
        taken[split] = members[left - number : left]
        left -= number
    return {"train": members[:left], **taken}


def _own(index: Index, split: str, classes: tuple[str, ...], passed_over: list[tuple[str, str]]) -> list[Entry]:
    unknown = sorted(name for name, count in index.counts().items() if count and name not in classes)
    if unknown:
        raise UserError("create", f"the {split} files have classes that are not learned: {', '.join(unknown)}.")
    passed_over += [(name, f"{reason} (of the {split} files)") for name, reason in index.passed_over]
    rows = zip(index.paths, index.names, index.labels.tolist(), strict=True)
    return [Entry(path, name, classes.index(index.classes[label])) for path, name, label in rows]


def _refuse_overlap(parts: dict[str, list[Entry]]) -> None:
    seen: dict[str, str] = {}
    for split, entries in parts.items():
        for entry in entries:
            other = seen.setdefault(os.path.realpath(entry.path), split)
            if other != split:
                raise UserError(
                    "create", f"{entry.name} is in two splits, {other} and {split}. Results on it would mean nothing."
                )


def _shuffled(entries: list[Entry], seed: int, split: str) -> list[Entry]:
    order = np.random.default_rng([seed, 1 + SPLITS.index(split), len(entries)]).permutation(len(entries))
    return [entries[i] for i in order]


def _state(path: str) -> list[int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_size, found.st_mtime_ns]
