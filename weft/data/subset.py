"""Some examples of a dataset, and the part of training that is held out where nobody made a validation split."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UserError
from ..ops.declare import whole
from .dataset import Dataset, Splits, _as_indices, read_only
from .statistics import Statistics
from .texts import Text


class Subset(Dataset):
    """Some examples of another dataset, by their numbers there. Nothing is copied until it is asked for.

    The statistics are those of the whole: networks that learn from different parts of it see the same scale.

    >>> from weft.data import Arrays
    >>> d = Subset(Arrays(np.arange(10.0), np.arange(10) % 2, ["even", "odd"], "numbers"), [7, 2, 5])
    >>> d, d.inputs([0, 2]).tolist(), d.counts()
    (<numbers: 3 examples of (), 2 classes>, [7.0, 5.0], {'even': 1, 'odd': 2})
    """

    def __init__(self, base: Dataset, indices: Any) -> None:
        numbers = np.arange(len(base))[_as_indices(indices, len(base))]
        super().__init__(base.labels[numbers], base.classes, base.name, None)
        if isinstance(base, Subset):  # a part of a part is a part of the whole
            numbers, base = base.indices[numbers], base.base
        self._base, self._indices = base, read_only(numbers)

    @property
    def base(self) -> Dataset:
        """The dataset that the examples belong to."""
        return self._base

    @property
    def indices(self) -> np.ndarray:
        """The number of each example in `base`."""
        return self._indices

    @property
    def shape(self) -> tuple[int, ...]:
        return self._base.shape

    @property
    def statistics(self) -> Statistics | None:
        return self._base.statistics

    def inputs(self, indices: Any) -> np.ndarray:
        return self._base.inputs(self._indices[_as_indices(indices, len(self))])


def held_out(splits: Splits, share: float = 0.1, seed: int = 0) -> Splits:
    """Splits with a validation split: their own, or else this share of every class, taken out of training.

    Every class that has two examples or more gives at least one and keeps at least one. Which ones follows from the
    seed alone; the rest of training stays in its order. A text is cut at its end. With a share of 0 nothing is done.

    >>> from weft.data import known
    >>> held_out(known("digits"))
    Splits(train=<digits: 1293 examples of (1, 8, 8), 10 classes>, validation=<digits: 145 examples of (1, 8, 8), 10 classes>,
           test=<digits: 359 examples of (1, 8, 8), 10 classes>)
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise UserError("held_out", f"a share from 0 to below 1 is required, got {share!r}.")
    if whole("held_out", "seed", seed) >= 1 << 64:
        raise UserError("held_out", f"a seed is an int from 0 to 2**64 - 1, got {seed}.")
    if splits.validation is not None or share == 0:
        return splits
    if isinstance(splits.train, Text):
        return _cut(splits.train, splits.test, share)
    taken = _taken(splits.train, share, seed)
    if not taken.any():
        of_what = " of a class" if splits.train.classes else ""
        raise UserError(
            "held_out",
            f"there must be two examples or more{of_what}, training has {len(splits.train)} in all. "
            "Give a validation split, or the share 0.",
        )
    train, validation = (Subset(splits.train, np.flatnonzero(chosen)) for chosen in (~taken, taken))
    return Splits(train, validation, splits.test)


def _taken(train: Dataset, share: float, seed: int) -> np.ndarray:
    """Which examples are held out, as a mask."""
    classed = bool(train.classes) and train.labels.ndim == 1
    groups = train.labels if classed else np.zeros(len(train), np.int64)
    taken = np.zeros(len(train), bool)
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group)
        number = min(max(int(len(members) * share + 0.5), 1), len(members) - 1)
        taken[members[_order(len(members), seed, group)[:number]]] = True
    return taken


def _order(count: int, seed: int, group: int) -> np.ndarray:
    """An order as the loader makes them, from words of Philox that no epoch uses: its counter begins elsewhere."""
    key, counter = np.array([seed, group], np.uint64), np.array([0, 0, 0, 1], np.uint64)
    return np.argsort(np.random.Philox(key=key, counter=counter).random_raw(count), kind="stable")


def _cut(text: Text, test: Dataset | None, share: float) -> Splits:
    """The end of a text, which must be long enough for a window; so must the rest."""
    length = int(len(text.ids) * share)
    if min(length, len(text.ids) - length) <= text.length:
        raise UserError(
            "held_out",
            f"{share:g} of {len(text.ids)} characters leave no window of {text.length} on one side. "
            "Take another share, or shorter windows.",
        )
    train, validation, _ = text.split(share)
    return Splits(train, validation, test)
