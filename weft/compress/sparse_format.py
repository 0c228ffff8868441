"""The sparse format of `weft.sparse_matmul`: kept weights, row by row, in blocks of columns.

Kernels multiply STEP weights per iteration. Rows are padded with zeros to whole iterations, unless they are so short that padding would
cost more than the remainder: then kernels multiply the remainder one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import UserError
from ..ops.sparse import MOST_CODES

STEP = 16  # weights per iteration
BLOCK = 12800  # maximum columns of a block: they fit an L1 cache of 64 KB; every block costs a loop per row
FILLED = 4  # mean iterations per row from which rows are padded


class SparseArrays(NamedTuple):
    """The tensors of a sparse weight."""

    values: np.ndarray  # of each weight, or the codebook
    columns: np.ndarray
    starts: np.ndarray
    codes: np.ndarray | None
    block: int

    @property
    def tensors(self) -> list[np.ndarray]:
        """The arguments of `sparse_matmul` after x."""
        return [self.values, self.columns, self.starts, *([] if self.codes is None else [self.codes])]

    @property
    def nbytes(self) -> int:
        """The bytes that a product reads."""
        return sum(array.nbytes for array in self.tensors)


def sparse_values(weight: np.ndarray, most: int = BLOCK) -> SparseArrays:
    """A weight (outputs, inputs) by its nonzero values."""
    entries = _Entries(weight != 0, most)
    return SparseArrays(entries.listed(weight, 0), entries.columns, entries.starts, None, entries.block)


def sparse_codes(codebook: np.ndarray, codes: np.ndarray, most: int = BLOCK) -> SparseArrays:
    """A weight by a codebook of up to 255 values and codes (outputs, inputs): code 0 is the weight 0, code i is value i - 1."""
    assert len(codebook) < MOST_CODES
    entries = _Entries(codes != 0, most)
    listed = entries.listed((codes - 1).astype(np.uint8), len(codebook))  # a code beyond the codebook is 0
    return SparseArrays(codebook, entries.columns, entries.starts, listed, entries.block)


class _Entries:
    """The positions of kept weights in the list, by block, row and column."""

    def __init__(self, kept: np.ndarray, most: int) -> None:
        outputs, inputs = kept.shape
        blocks = -(-inputs // most)
        block = self.block = -(-inputs // blocks)  # of equal sizes
        rows, inside = [], []
        for b in range(blocks):
            row, column = np.nonzero(kept[:, b * block : (b + 1) * block])
            rows.append(row + b * outputs)
            inside.append(column)
        row, column = (np.concatenate([np.zeros(0, np.int64), *parts]) for parts in (rows, inside))
        counts = np.bincount(row, minlength=blocks * outputs)
        rows_with_weights = max(1, int(np.count_nonzero(counts)))
        is_filled = len(row) >= FILLED * STEP * rows_with_weights
        filled = -(-counts // STEP) * STEP if is_filled else counts
        edges = np.concatenate([[0], np.cumsum(filled)])
        self.place = edges[row] + np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
        self.weights = row % max(1, outputs), row // max(1, outputs) * block + column
        if edges[-1] > np.iinfo(np.int32).max:
            raise UserError("sparse", f"up to 2^31 - 1 kept weights of a layer are possible, got {edges[-1]}.")
        self.columns = np.full(edges[-1], block, np.uint16)  # padding reads an input that is 0
        self.columns[self.place] = column
        self.starts = np.stack([edges[b * outputs : (b + 1) * outputs + 1] for b in range(blocks)]).astype(np.int32)

    def listed(self, weight: np.ndarray, filler: float) -> np.ndarray:
        """The entries of a matrix at the kept weights, in the order of the list."""
        found = np.full(len(self.columns), filler, weight.dtype)
        found[self.place] = weight[self.weights]
        return found
