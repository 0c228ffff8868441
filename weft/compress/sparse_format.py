"""Weights in the form that `weft.sparse_matmul` reads: those that are kept, row by row, in blocks of columns.

Kernels multiply STEP weights in an iteration. Rows are filled up to whole iterations with weights of zero, unless they are so short that this would
cost more than the rest of an iteration that is left: then kernels multiply the rest one by one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import UserError
from ..ops.sparse import MOST_CODES

STEP = 16  # weights of an iteration
BLOCK = 12800  # most columns of a block: few enough for an L1 cache of 64 KB, as every block costs a loop for each row
FILLED = 4  # iterations that a row must have on average to be filled up


class SparseArrays(NamedTuple):
    """The tensors of a sparse weight."""

    values: np.ndarray  # of each weight, or the codebook
    columns: np.ndarray
    starts: np.ndarray
    codes: np.ndarray | None
    block: int

    @property
    def tensors(self) -> list[np.ndarray]:
        """What `sparse_matmul` takes after x."""
        return [self.values, self.columns, self.starts, *([] if self.codes is None else [self.codes])]

    @property
    def nbytes(self) -> int:
        """The bytes that a product reads."""
        return sum(array.nbytes for array in self.tensors)


def sparse_values(weight: np.ndarray, most: int = BLOCK) -> SparseArrays:
    """A weight (outputs, inputs) by its values that are not 0."""
    entries = _Entries(weight != 0, most)
    return SparseArrays(entries.listed(weight, 0), entries.columns, entries.starts, None, entries.block)


def sparse_codes(codebook: np.ndarray, codes: np.ndarray, most: int = BLOCK) -> SparseArrays:
    """A weight by a codebook of up to 255 values and codes (outputs, inputs): 0 is the weight 0, i the value i - 1."""
    assert len(codebook) < MOST_CODES
    entries = _Entries(codes != 0, most)
    listed = entries.listed((codes - 1).astype(np.uint8), len(codebook))  # a code beyond the codebook is 0
    return SparseArrays(codebook, entries.columns, entries.starts, listed, entries.block)


class _Entries:
    """Where the kept weights are in the list, by block, row and column."""

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
        self.columns = np.full(edges[-1], block, np.uint16)  # fillers read an input that is 0
        self.columns[self.place] = column
        self.starts = np.stack([edges[b * outputs : (b + 1) * outputs + 1] for b in range(blocks)]).astype(np.int32)

    def listed(self, weight: np.ndarray, filler: float) -> np.ndarray:
        """What the kept weights have in a matrix, in the order of the list."""
        found = np.full(len(self.columns), filler, weight.dtype)
        found[self.place] = weight[self.weights]
        return found
