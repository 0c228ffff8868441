"""Folds of a cross-validation: every example belongs to exactly one of them, and their labels are distributed alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from ..report.text_format import counted
from .dataset import Splits
from .label_kinds import kind_of
from .subset import Subset
from .texts import Text

GROUP_BINS = 10  # quantile bins of numbers that are balanced if examples come in groups


def stratified_folds(labels: Any, folds: int, seed: int = 0, groups: Any = None) -> np.ndarray:
    """The fold (0, 1, ...) of each example.

    Sizes of folds differ by at most one, and so do the numbers of examples of any class in them. Where an example can have several classes, that
    holds for each combination of classes. Numbers are spread by quantiles: of as many neighbouring values as there are folds, each fold gets
    one. Examples of one group (`groups`: a value for each example) stay together, and folds are as alike as a greedy assignment makes them.

    >>> labels = np.array([0, 1, 0, 1, 0, 0])
    >>> [np.bincount(labels[stratified_folds(labels, 2) == fold]).tolist() for fold in (0, 1)]
    [[2, 1], [2, 1]]
    """
    known = np.asarray(labels)
    check_folds(known, folds)
    if groups is not None:
        return _grouped(_strata(known, GROUP_BINS), np.asarray(groups), folds, seed)
    strata = _strata(known, max(1, -(-len(known) // folds)), folds)
    random = np.random.default_rng([seed, folds]).permutation(len(known))
    order = random[np.argsort(strata[random], kind="stable")]
    found = np.empty(len(known), np.int64)
    found[order] = np.arange(len(known)) % folds
    return found


def check_folds(labels: np.ndarray, folds: int, classes: Sequence[str] = ()) -> None:
    """Refuse folds that could not all have examples of every class."""
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
        raise UserError("folds", f"2 folds or more are required, got {folds}.")
    if len(labels) < folds:
        raise UserError("folds", f"at least as many examples as folds are required, got {counted(len(labels), 'example')} and {folds} folds.")  # fmt: skip
    if kind_of(labels) == "class":
        found, counts = np.unique(labels, return_counts=True)
        least = int(counts.argmin())
        if counts[least] < folds:
            name = classes[int(found[least])] if classes else str(found[least])
            fewer = f"Use {counts[least]} folds or fewer, or add examples." if counts[least] > 1 else "Add examples."
            raise UserError(
                "folds",
                f"at most as many folds as the smallest class has examples are required, got {folds} folds, and class {name} has "
                f"{counted(int(counts[least]), 'example')}. {fewer}",
            )


def fold_splits(splits: Splits, number: int, folds: int, seed: int = 0) -> Splits:
    """Splits whose test split is the fold of this number (from 1) of the training split, and whose training split is the rest.

    An existing validation split stays; an existing test split is left out, so that it decides nothing.

    >>> from weft.data import known
    >>> found = fold_splits(known("digits"), 1, 5)
    >>> len(found.train), len(found.test)
    (1150, 288)
    """
    train = splits.train
    if isinstance(train, Text):
        raise UserError("folds", "examples with labels are required, got a text, which is one sequence.")
    if not 1 <= number <= folds:
        raise UserError("folds", f"a fold from 1 to {folds} is required, got {number}.")
    check_folds(train.labels, folds, train.classes)
    fold = stratified_folds(train.labels, folds, seed, train.groups)
    rest, held = (Subset(train, np.flatnonzero(chosen)) for chosen in (fold != number - 1, fold == number - 1))
    return Splits(rest, splits.validation, held)


# --- what is spread evenly ----------------------------------------------------------------------------------------------------


def _strata(labels: np.ndarray, bins: int, each: int = 0) -> np.ndarray:
    """The stratum of each example: its class, its combination of classes, or the quantile bin of its number.

    `each`: how many examples a bin has; else there are `bins` bins.
    """
    kind = kind_of(labels)
    if kind == "class":
        return labels.astype(np.int64).reshape(len(labels))
    if kind == "classes":
        # Rare classes first: combinations that are too rare to be in every fold stand beside those that share their rare classes.
        ordered = labels[:, np.argsort(labels.sum(axis=0), kind="stable")]
        return np.unique(ordered, axis=0, return_inverse=True)[1].reshape(len(labels)).astype(np.int64)
    columns = labels.reshape(len(labels), -1).astype(np.float64)
    spread = columns.std(axis=0)
    value = ((columns - columns.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).mean(axis=1)
    rank = np.empty(len(value), np.int64)
    rank[np.argsort(value, kind="stable")] = np.arange(len(value))
    return rank // each if each else rank * bins // len(value)


def _grouped(strata: np.ndarray, groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Whole groups to folds, the largest first, each to the fold that stays most alike the others."""
    if groups.shape != strata.shape:
        raise UserError("folds", f"a group for each example is required, got {groups.shape} for {len(strata)} examples.")  # fmt: skip
    _, member = np.unique(groups, return_inverse=True)
    _, stratum = np.unique(strata, return_inverse=True)
    counts = np.zeros((member.max() + 1, stratum.max() + 1))
    np.add.at(counts, (member, stratum), 1)
    if len(counts) < folds:
        raise UserError("folds", f"at least as many groups as folds are required, got {counted(len(counts), 'group')} and {folds} folds.")  # fmt: skip
    total = counts.sum(axis=0)
    filled, chosen = np.zeros((folds, len(total))), np.empty(len(counts), np.int64)
    random = np.random.default_rng([seed, folds]).permutation(len(counts))
    for group in random[np.argsort(-counts[random].sum(axis=1), kind="stable")]:
        # The rise of the sum of squared shares, over strata and in all: least where the fold lacks what the group has.
        rise = (counts[group] * (2 * filled + counts[group]) / total).sum(axis=1)
        size = counts[group].sum() * (2 * filled.sum(axis=1) + counts[group].sum()) / total.sum()
        chosen[group] = int(np.argmin(rise + size))
        filled[chosen[group]] += counts[group]
    if (filled.sum(axis=1) == 0).any():
        raise UserError("folds", f"groups that fill {folds} folds are required, got groups that are too large. Use fewer folds.")  # fmt: skip
    return np.asarray(chosen[member])
