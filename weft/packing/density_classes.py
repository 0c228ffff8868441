"""Contexts of a mask of zeros. After pruning some rows and columns keep many weights and others few: a class for each row and column tells the
coder how likely a weight is kept. Classes are sent too, so there are as many as pay for themselves.
"""

from __future__ import annotations

import numpy as np

from ..records import dataclass
from .frequencies import TOTAL

COUNTS = (1, 2, 3, 4, 6, 8, 12)  # of classes of rows and of columns that are tried
_TABLE_BITS = 12.0  # of a context's table
_STEPS = 20  # of clustering


@dataclass(frozen=True)
class DensityClasses:
    """The class of each row and of each column of a mask."""

    rows: np.ndarray
    columns: np.ndarray
    row_classes: int
    column_classes: int

    @property
    def count(self) -> int:
        return self.row_classes * self.column_classes

    def contexts(self) -> np.ndarray:
        """The context of every entry of the mask."""
        found: np.ndarray = self.rows[:, None] * np.uint8(self.column_classes) + self.columns[None, :]
        return found.ravel()


def choose_classes(mask: np.ndarray) -> DensityClasses:
    """The classes with which the mask of two dimensions and the classes themselves take the fewest bits."""
    kept = mask.astype(np.float32)
    of_rows, of_columns = mask.sum(axis=1), mask.sum(axis=0)
    best, least = None, np.inf
    by_columns = {count: _clustered(of_columns, mask.shape[0], count) for count in COUNTS}
    for row_count in COUNTS:
        rows = _clustered(of_rows, mask.shape[1], row_count)
        if rows.max(initial=0) + 1 < row_count:
            continue
        by_row_class = _one_hot(rows) @ kept  # (classes, columns)
        for column_count, columns in by_columns.items():
            if columns.max(initial=0) + 1 < column_count:
                continue
            ones = by_row_class @ _one_hot(columns).T
            sizes = np.outer(np.bincount(rows), np.bincount(columns))
            bits = _mask_bits(ones, sizes) + _TABLE_BITS * ones.size + _class_bits(rows) + _class_bits(columns)
            if bits < least:
                best, least = DensityClasses(rows, columns, *ones.shape), bits
    assert best is not None, "one class is always possible"
    return best


def _one_hot(classes: np.ndarray) -> np.ndarray:
    found: np.ndarray = (np.arange(classes.max(initial=0) + 1)[:, None] == classes[None, :]).astype(np.float32)
    return found


def _clustered(kept: np.ndarray, size: int, count: int) -> np.ndarray:
    """The class of each row, by how many of its `size` weights are kept: rows of a class are coded with its mean density. Classes are in the order of density."""
    density = (np.asarray(kept, np.float64) + 0.02) / (size + 0.04)  # the logarithm of 0 is avoided
    means = np.unique(np.quantile(density, (np.arange(count) + 0.5) / count))
    found = np.zeros(len(density), np.int64)
    for _ in range(_STEPS if count > 1 else 0):
        cost = -(density[:, None] * np.log(means) + (1 - density[:, None]) * np.log1p(-means))
        moved = np.unique(cost.argmin(axis=1), return_inverse=True)[1]
        means = np.bincount(moved, density) / np.bincount(moved)
        if np.array_equal(moved, found):
            break
        found = moved
    return found.astype(np.uint8)


def _mask_bits(ones: np.ndarray, sizes: np.ndarray) -> float:
    """The bits of masks of these sizes with so many ones, with frequencies as tables hold them."""
    share = np.clip(ones / np.maximum(sizes, 1), 1 / TOTAL, 1 - 1 / TOTAL)
    bits = -(ones * np.log2(share) + (sizes - ones) * np.log2(1 - share))
    return float(np.where((ones == 0) | (ones == sizes), 0.0, bits).sum())


def _class_bits(classes: np.ndarray) -> float:
    counts = np.bincount(classes)
    counts = counts[counts > 0]
    table = _TABLE_BITS * (len(counts) - 1)
    return float(-(counts * np.log2(counts / len(classes))).sum()) + table if len(classes) else 0.0
