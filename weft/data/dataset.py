"""`Dataset` is an immutable collection of examples; `Splits` are its training, validation and test splits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError
from .label_kinds import kind_of, label_counts
from .statistics import Statistics, histogram


class Dataset(ABC):
    """An immutable collection of examples: inputs are read by index, labels are all in memory.

    `labels` are read-only: int64 class indices; bools of shape (n, classes) where an example can have several classes; or
    floats for regression. `classes` are the names of the classes, empty for regression. `mean` and `std` are per channel, for inputs scaled to [0, 1]; None if unknown.
    """

    def __init__(self, labels: np.ndarray, classes: Sequence[str], name: str, statistics: Statistics | None) -> None:
        self._labels, self._classes, self._name = read_only(labels), tuple(classes), name
        self._statistics = statistics

    @property
    def name(self) -> str:
        return self._name

    @property
    def labels(self) -> np.ndarray:
        return self._labels

    @property
    def classes(self) -> tuple[str, ...]:
        return self._classes

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""

    @abstractmethod
    def inputs(self, indices: Any) -> np.ndarray:
        """A batch of inputs by index, in the dtype they are stored in."""

    @property
    def statistics(self) -> Statistics | None:
        return self._statistics

    @property
    def groups(self) -> np.ndarray | None:
        """The group of each example, such as the patient of an image: a cross-validation keeps groups together. None: there are no groups."""
        return None

    @property
    def names(self) -> list[str] | None:
        """The name of each example, such as its file; None if they have none."""
        return None

    @property
    def mean(self) -> tuple[float, ...] | None:
        return self.statistics.mean if self.statistics else None

    @property
    def std(self) -> tuple[float, ...] | None:
        return self.statistics.std if self.statistics else None

    def counts(self) -> dict[str, int]:
        """The number of examples of each class."""
        return label_counts(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"<{name}{len(self)} examples of {self.shape}{classes}>"


class Arrays(Dataset):
    """A dataset of two arrays, in memory or memory-mapped.

    Integer labels are class indices; without names the classes are called "0", "1" and so on. Bools of shape (n, classes) say
    which classes an example has. Float labels are regression targets. `groups` has a value for each example.

    >>> d = Arrays(np.zeros((3, 1, 2, 2), np.uint8), [0, 1, 1], classes=["cat", "dog"], name="pets")
    >>> d, d.inputs([2, 0]).shape, d.counts()
    (<pets: 3 examples of (1, 2, 2), 2 classes>, (2, 1, 2, 2), {'cat': 1, 'dog': 2})
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        classes: Sequence[str] | None = None,
        name: str = "",
        statistics: Statistics | None = None,
        groups: Any = None,
    ) -> None:
        inputs = x if isinstance(x, np.ndarray) else np.asarray(x)
        labels = _as_labels(y)
        if inputs.dtype.kind not in "buif":
            raise UserError("Arrays", f"inputs must be numbers, got {inputs.dtype}.")
        if inputs.ndim < 1 or labels.ndim < 1 or len(inputs) != len(labels):
            raise UserError(
                "Arrays", f"there must be a label for each input, got inputs {inputs.shape} and labels {labels.shape}."
            )
        super().__init__(labels, _as_classes(labels, classes), name, statistics)
        self._x, self._groups = read_only(inputs), None if groups is None else _as_groups(groups, len(labels))

    @property
    def groups(self) -> np.ndarray | None:
        return self._groups

    @property
    def shape(self) -> tuple[int, ...]:
        return self._x.shape[1:]

    @property
    def x(self) -> np.ndarray:
        """All inputs."""
        return self._x

    @cached_property
    def statistics(self) -> Statistics | None:  # computed on first use
        if self._statistics is None and self._x.dtype == np.uint8 and self._x.ndim == 4 and self._x.size:
            return Statistics.of(histogram(self._x))
        return self._statistics

    def inputs(self, indices: Any) -> np.ndarray:
        found: np.ndarray = np.asarray(self._x)[_as_indices(indices, len(self))]
        return found.copy() if isinstance(indices, slice) else found  # fancy indexing copies already


class Splits(NamedTuple):
    """The training, validation (model selection) and test (final evaluation) splits of a dataset."""

    train: Dataset
    validation: Dataset | None = None
    test: Dataset | None = None


def read_only(array: np.ndarray) -> np.ndarray:
    """A read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _as_indices(indices: Any, length: int) -> Any:
    if isinstance(indices, slice):
        return indices
    numbers = np.atleast_1d(np.asarray(indices))
    if numbers.size == 0:
        return np.zeros(0, np.int64)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise UserError(
            "inputs", f"indices must be integers of shape (n,), got {numbers.dtype} of shape {numbers.shape}."
        )
    if numbers.min() < 0 or numbers.max() >= length:
        raise UserError("inputs", f"indices must lie in 0...{length - 1}, got {numbers.min()}...{numbers.max()}.")
    return numbers


def _as_groups(groups: Any, count: int) -> np.ndarray:
    found = np.asarray(groups)
    if found.shape != (count,) or found.dtype.kind not in "biuUS":
        raise UserError(
            "Arrays", f"groups must be {count} numbers or texts, one for each example, got {found.dtype} {found.shape}."
        )
    return read_only(found)


def _as_labels(y: Any) -> np.ndarray:
    labels = np.asarray(y)
    if kind_of(labels) == "classes":
        return labels
    if labels.dtype.kind in "biu":
        return labels.astype(np.int64)
    if labels.dtype.kind == "f":
        return labels
    raise UserError("Arrays", f"labels must be class indices or floats, got {labels.dtype}.")


def _as_classes(labels: np.ndarray, classes: Sequence[str] | None) -> tuple[str, ...]:
    if labels.dtype.kind == "f":
        if classes:
            raise UserError(
                "Arrays", "float labels are regression targets and have no classes. Pass integers, or no classes."
            )
        return ()
    if kind_of(labels) == "classes":
        return _as_label_names(labels.shape[1], classes)
    low, high = (int(labels.min()), int(labels.max())) if labels.size else (0, -1)
    if classes is not None and not classes:
        return ()  # integers that are not classes: counts, characters
    if classes is None and high >= MAX_UNNAMED_CLASSES:
        raise UserError(
            "Arrays", f"label {high} is too large for a class without a name. Name the classes, or pass floats."
        )
    names = tuple(str(i) for i in range(high + 1)) if classes is None else tuple(classes)
    if low < 0 or high >= len(names):
        wrong = low if low < 0 else high
        place = int(np.argmax(labels.ravel() == wrong))
        raise UserError("Arrays", f"labels must lie in 0...{len(names) - 1}, got {wrong} for example {place}.")
    if len(set(names)) != len(names):
        raise UserError("Arrays", f"class names must be different, got {names}.")
    return names


def _as_label_names(count: int, classes: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(map(str, range(count))) if classes is None else tuple(classes)
    if len(names) != count or len(set(names)) != count:
        raise UserError("Arrays", f"labels with {count} columns require {count} different class names, got {names}.")
    return names


MAX_UNNAMED_CLASSES = 100_000  # a larger label is almost certainly a mistake
