"""`Subset` selects examples of a dataset; `held_out` splits a validation set off the training set."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UserError
from ..ops.declare import whole
from .dataset import Dataset, Splits, _as_indices, read_only
from .statistics import Statistics
from .texts import Text


class Subset(Dataset):
    """A selection of examples of another dataset, by index. Inputs are copied only when they are read.

    The statistics are those of the whole dataset, so that networks trained on different subsets normalize alike.

    >>> from weft.data import Arrays
    >>> d = Subset(Arrays(np.arange(10.0), np.arange(10) % 2, ["even", "odd"], "numbers"), [7, 2, 5])
    >>> d, d.inputs([0, 2]).tolist(), d.counts()
    (<numbers: 3 examples of (), 2 classes>, [7.0, 5.0], {'even': 1, 'odd': 2})
    """

    def __init__(self, base: Dataset, indices: Any) -> None:
        numbers = np.arange(len(base))[_as_indices(indices, len(base))]
        super().__init__(base.labels[numbers], base.classes, base.name, None)
        if isinstance(base, Subset):  # a subset of a subset refers to the original
            numbers, base = base.indices[numbers], base.base
        self._base, self._indices = base, read_only(numbers)

    @property
    def base(self) -> Dataset:
        """The original dataset."""
        return self._base

    @property
    def indices(self) -> np.ndarray:
        """The index of each example in `base`."""
        return self._indices

    @property
    def shape(self) -> tuple[int, ...]:
        return self._base.shape

    @property
    def statistics(self) -> Statistics | None:
        return self._base.statistics

    @property
    def groups(self) -> np.ndarray | None:
        return None if self._base.groups is None else self._base.groups[self._indices]

    @property
    def names(self) -> list[str] | None:
        names = self._base.names
        return None if names is None else [names[i] for i in self._indices.tolist()]

    def inputs(self, indices: Any) -> np.ndarray:
        return self._base.inputs(self._indices[_as_indices(indices, len(self))])


def held_out(splits: Splits, share: float = 0.1, seed: int = 0) -> Splits:
    """Splits with a validation split: the existing one, or else this fraction of every class of the training set.

    Of every class with two examples or more, at least one is held out and at least one is kept. The selection depends
    on the seed alone; the remaining training examples keep their order. For a text, the end is held out. With a share
    of 0 the splits are returned unchanged.

    >>> from weft.data import known
    >>> held_out(known("digits"))
    Splits(train=<digits: 1293 examples of (1, 8, 8), 10 classes>, validation=<digits: 145 examples of (1, 8, 8), 10 classes>,
           test=<digits: 359 examples of (1, 8, 8), 10 classes>)
    """
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share < 1:
        raise UserError("held_out", f"a share in [0, 1) is required, got {share!r}.")
    if whole("held_out", "seed", seed) >= 1 << 64:
        raise UserError("held_out", f"the seed must be an int from 0 to 2**64 - 1, got {seed}.")
    if splits.validation is not None or share == 0:
        return splits
    if isinstance(splits.train, Text):
        return _hold_out_text(splits.train, splits.test, share)
    mask = _held_out_mask(splits.train, share, seed)
    if not mask.any():
        of_what = " of a class" if splits.train.classes else ""
        raise UserError(
            "held_out",
            f"two examples or more{of_what} are required, the training set has {len(splits.train)} in all. "
            "Provide a validation split, or pass the share 0.",
        )
    train, validation = (Subset(splits.train, np.flatnonzero(chosen)) for chosen in (~mask, mask))
    return Splits(train, validation, splits.test)


def _held_out_mask(train: Dataset, share: float, seed: int) -> np.ndarray:
    """A mask of the examples that are held out."""
    classed = bool(train.classes) and train.labels.ndim == 1
    groups = train.labels if classed else np.zeros(len(train), np.int64)
    mask = np.zeros(len(train), bool)
    for group in np.unique(groups).tolist():
        members = np.flatnonzero(groups == group)
        number = min(max(int(len(members) * share + 0.5), 1), len(members) - 1)
        mask[members[_permutation(len(members), seed, group)[:number]]] = True
    return mask


def _permutation(count: int, seed: int, group: int) -> np.ndarray:
    """A permutation like the loader's, from a range of Philox counters that no epoch uses."""
    key, counter = np.array([seed, group], np.uint64), np.array([0, 0, 0, 1], np.uint64)
    return np.argsort(np.random.Philox(key=key, counter=counter).random_raw(count), kind="stable")


def _hold_out_text(text: Text, test: Dataset | None, share: float) -> Splits:
    """Hold out the end of a text; both parts must be longer than a window."""
    length = int(len(text.ids) * share)
    if min(length, len(text.ids) - length) <= text.length:
        raise UserError(
            "held_out",
            f"{share:g} of {len(text.ids)} characters leave no window of {text.length} on one side. "
            "Use another share, or shorter windows.",
        )
    train, validation, _ = text.split(share)
    return Splits(train, validation, test)
