"""The three kinds of labels of image files: one class, several classes, or numbers; and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

LabelKind = Literal["class", "classes", "numbers"]
LABELS: tuple[LabelKind, ...] = ("class", "classes", "numbers")
Label = int | tuple[int, ...] | tuple[float, ...]  # of one file: a class, classes, or numbers


def kind_of(labels: np.ndarray) -> LabelKind:
    """The kind of these labels: int64 (n,) are classes, bool (n, classes) say which of several, floats are numbers.

    >>> kind_of(np.zeros((3, 2), bool)), kind_of(np.zeros(3)), kind_of(np.zeros(3, np.int64))
    ('classes', 'numbers', 'class')
    """
    if labels.dtype.kind == "f":
        return "numbers"
    return "classes" if labels.dtype.kind == "b" and labels.ndim == 2 else "class"


def label_array(labels: Sequence[Label], kind: LabelKind, classes: int) -> np.ndarray:
    """Labels of files as they are stored.

    >>> label_array([(0, 2), ()], "classes", 3).astype(int).tolist()
    [[1, 0, 1], [0, 0, 0]]
    """
    if kind == "class":
        return np.array(labels, np.int64)
    if kind == "numbers":
        found = np.array(labels, np.float32)
        return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
    several = np.zeros((len(labels), classes), bool)
    for row, chosen in enumerate(labels):
        several[row, np.array(chosen, np.int64)] = True
    return several


def label_list(labels: np.ndarray) -> list[Label]:
    """The label of each file: the inverse of `label_array`."""
    kind = kind_of(labels)
    if kind == "class":
        return list(map(int, labels))
    if kind == "numbers":
        return [tuple(map(float, row)) for row in labels.reshape(len(labels), -1)]
    return [tuple(map(int, np.flatnonzero(row))) for row in labels]


NamedLabel = tuple[str, ...] | tuple[float, ...]  # the same in words: names of classes, or numbers


def named(labels: Sequence[Label], kind: LabelKind, classes: Sequence[str]) -> list[NamedLabel]:
    """Labels with the names of their classes.

    >>> named([1, 0], "class", ["cat", "dog"]), named([(0, 1), ()], "classes", ["cat", "dog"]), named([(2.5,)], "numbers", [])
    ([('dog',), ('cat',)], [('cat', 'dog'), ()], [(2.5,)])
    """
    if kind == "numbers":
        return list(labels)  # type: ignore[arg-type]
    found = ((label,) if isinstance(label, int) else label for label in labels)
    return [tuple(classes[int(number)] for number in one) for one in found]


def numbered(labels: Sequence[NamedLabel], kind: LabelKind, classes: Sequence[str]) -> list[Label]:
    """The inverse of `named`."""
    if kind == "numbers":
        return list(labels)  # type: ignore[arg-type]
    number_of = {name: number for number, name in enumerate(classes)}
    found = [tuple(number_of[str(name)] for name in one) for one in labels]
    return [one[0] for one in found] if kind == "class" else list(found)


def renamed(label: NamedLabel, names: Mapping[str, str]) -> NamedLabel:
    """A label whose classes have new names; two that become one are there once. Numbers stay.

    >>> renamed(("cat", "kitten"), {"kitten": "cat"}), renamed((0.0, 0.0), {})
    (('cat',), (0.0, 0.0))
    """
    if label and not isinstance(label[0], str):
        return label
    return tuple(dict.fromkeys(names.get(str(one), str(one)) for one in label))


def label_of_text(text: str, kind: LabelKind) -> NamedLabel:
    """A label as lists write it: the name of a class, or several classes or numbers with ; between them.

    >>> label_of_text("cat; dog", "classes"), label_of_text("", "classes"), label_of_text("1;2.5", "numbers")
    (('cat', 'dog'), (), (1.0, 2.5))
    """
    if kind == "class":
        return (text,)
    parts = [part.strip() for part in text.split(";") if part.strip()]
    return tuple(map(float, parts)) if kind == "numbers" else tuple(dict.fromkeys(parts))


def label_counts(labels: np.ndarray, classes: Sequence[str]) -> dict[str, int]:
    """How many examples have each class; nothing for numbers."""
    if not classes:
        return {}
    found = labels.sum(axis=0) if kind_of(labels) == "classes" else np.bincount(labels.ravel(), minlength=len(classes))
    return dict(zip(classes, map(int, found), strict=True))


def examples_by_split(about: Mapping[str, Any]) -> dict[str, int]:
    """How many examples each split of a dataset has, from its description. With one class each, the counts add up to it."""
    stored = about.get("examples", {})
    return {split: int(stored.get(split, sum(counts.values()))) for split, counts in about["counts"].items()}
