"""A random forest for regression on a small table (Breiman 2001): bootstrap samples, trees grown on random thirds of the columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..records import dataclass

TREES = 100
LEAF = 2  # rows of the smallest leaf


@dataclass
class Branch:
    """A node of a tree: rows whose column is at most the threshold go left. A leaf has no column, and a value."""

    value: float
    column: int = -1
    threshold: float = 0.0
    left: Branch | None = None
    right: Branch | None = None


@dataclass(frozen=True)
class FittedTree:
    """A tree and the rows that it was not grown on."""

    root: Branch
    held_out: np.ndarray

    def predict(self, table: np.ndarray) -> np.ndarray:
        return np.array([_leaf(self.root, row) for row in table])


def forest(table: np.ndarray, values: np.ndarray, seed: int = 0, trees: int = TREES) -> Iterator[FittedTree]:
    """Trees grown on bootstrap samples of the rows."""
    random = np.random.default_rng(seed)
    for _ in range(trees):
        rows = random.integers(0, len(values), len(values))
        root = _grow(table[rows], values[rows], random)
        yield FittedTree(root, np.setdiff1d(np.arange(len(values)), rows))


def _grow(table: np.ndarray, values: np.ndarray, random: np.random.Generator) -> Branch:
    made = Branch(float(values.mean()))
    some = max(1, -(-table.shape[1] // 3)) if table.shape[1] > 2 else table.shape[1]
    split = _best_split(table, values, random.permutation(table.shape[1]), some)
    if split is not None:
        made.column, made.threshold = split
        goes_left = table[:, made.column] <= made.threshold
        made.left = _grow(table[goes_left], values[goes_left], random)
        made.right = _grow(table[~goes_left], values[~goes_left], random)
    return made


def _best_split(table: np.ndarray, values: np.ndarray, columns: np.ndarray, some: int) -> tuple[int, float] | None:
    """The split of some columns with the smallest squared error; further columns only if none of these can be split."""
    if len(values) < 2 * LEAF or np.ptp(values) == 0:
        return None
    found: tuple[float, int, float] | None = None
    for tried, column in enumerate(columns.tolist()):
        if tried >= some and found is not None:
            break
        order = np.argsort(table[:, column], kind="stable")
        x, y = table[order, column], values[order]
        sizes = np.arange(1, len(y))
        sums = np.cumsum(y)[:-1]
        gain = sums**2 / sizes + (y.sum() - sums) ** 2 / (len(y) - sizes)
        allowed = (np.diff(x) > 0) & (sizes >= LEAF) & (len(y) - sizes >= LEAF)
        if allowed.any():
            place = int(np.argmax(np.where(allowed, gain, -np.inf)))
            one = (float(gain[place]), column, float((x[place] + x[place + 1]) / 2))
            found = one if found is None or one[0] > found[0] else found
    return None if found is None else (found[1], found[2])


def _leaf(branch: Branch, row: np.ndarray) -> float:
    while branch.left is not None and branch.right is not None:
        branch = branch.left if row[branch.column] <= branch.threshold else branch.right
    return branch.value
