"""The systolic array simulated cell by cell and cycle by cycle: for small arrays, to validate the timing model and to draw animations.

Activations move one cell to the right in every cycle, partial sums one cell down. The inputs of row r are delayed by r cycles, so that an activation meets
its partial sum; the wavefront moves diagonally through the array. Weights move down beside the sums and wait in a second register of their cell (double
buffering) until the first activation of the next block swaps them in.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from ..records import dataclass
from .lowering import parts


@dataclass(frozen=True)
class CellFrame:
    """The registers of every cell in one cycle."""

    cycle: int
    weight: np.ndarray
    activation: np.ndarray
    partial_sum: np.ndarray
    is_active: np.ndarray  # whether the activation belongs to the block


@dataclass(frozen=True)
class SystolicRun:
    """The product, the cycles until its last sum has left the array, and the registers in each cycle."""

    result: np.ndarray
    cycles: int
    compute_cycles: int  # cycles in which a row enters the array
    frames: list[CellFrame]


@dataclass(frozen=True)
class _Block:
    """Rows of activations times one tile of weights."""

    x: np.ndarray  # rows, array rows
    w: np.ndarray  # array rows, array columns
    columns: tuple[int, int]
    shift: int  # the cycle in which its first weights enter
    start: int  # the cycle in which its first row enters


def systolic_product(x: np.ndarray, w: np.ndarray, rows: int, columns: int, *, record: bool = True) -> SystolicRun:
    """x @ w on an array of rows x columns cells; larger products are tiled.

    >>> run = systolic_product(np.array([[1, 2], [3, 4], [5, 6]]), np.array([[1, 0], [2, -1]]), 2, 2)
    >>> run.result.tolist(), run.cycles
    ([[5, -2], [11, -4], [17, -6]], 7)
    """
    blocks = _blocks(np.asarray(x, np.int32), np.asarray(w, np.int32), rows, columns)
    array = _Cells.empty(rows, columns)
    result = np.zeros((len(x), w.shape[1]), np.int32)
    end = blocks[-1].start + len(x) + rows + columns - 2
    frames = []
    for cycle in range(end):
        array.step(blocks, cycle)
        for column, row, block, value in array.leaving(blocks, cycle):
            if block.columns[0] + column < block.columns[1]:
                result[row, block.columns[0] + column] += value
        if record:
            frames.append(array.frame(cycle))
    return SystolicRun(result, end, sum(len(block.x) for block in blocks), frames)


def _blocks(x: np.ndarray, w: np.ndarray, rows: int, columns: int) -> list[_Block]:
    """The tiles of a product in the compiler's order, each as soon as its weights are in the array."""
    blocks: list[_Block] = []
    shift, start = 0, rows
    for span in parts(w.shape[1], columns):
        for a, b in parts(w.shape[0], rows):
            blocks.append(
                _Block(
                    _padded(x[:, a:b], len(x), rows), _padded(w[a:b, slice(*span)], rows, columns), span, shift, start
                )
            )
            shift, start = start, max(start + len(x), start + rows)
    return blocks


def _padded(array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    return np.pad(array, ((0, rows - array.shape[0]), (0, columns - array.shape[1])))


@dataclass
class _Cells:
    """The registers of all cells."""

    weight: np.ndarray
    next_weight: np.ndarray
    activation: np.ndarray
    is_active: np.ndarray
    is_first: np.ndarray  # marks the first activation of a block: the next weight is swapped in
    partial_sum: np.ndarray
    passing: np.ndarray = field(init=False)  # weights being shifted down
    target: np.ndarray = field(init=False)  # their destination row; -1: none

    @classmethod
    def empty(cls, rows: int, columns: int) -> _Cells:
        made = cls(*(np.zeros((rows, columns), kind) for kind in (np.int32, np.int32, np.int32, bool, bool, np.int32)))
        made.passing, made.target = np.zeros((rows, columns), np.int32), np.full((rows, columns), -1)
        return made

    def step(self, blocks: list[_Block], cycle: int) -> None:
        """One clock cycle: every register takes its neighbour's value."""
        rows, columns = self.weight.shape
        activation, is_active, is_first = np.zeros(rows, np.int32), np.zeros(rows, bool), np.zeros(rows, bool)
        weight, target = np.zeros(columns, np.int32), np.full(columns, -1)
        for block in blocks:
            for row in range(rows):
                if 0 <= (m := cycle - block.start - row) < len(block.x):
                    activation[row], is_active[row], is_first[row] = block.x[m, row], True, m == 0
            for column in range(columns):
                if 0 <= (k := cycle - block.shift - column) < rows:
                    weight[column], target[column] = block.w[rows - 1 - k, column], rows - 1 - k
        self.activation = np.column_stack([activation, self.activation[:, :-1]])
        self.is_active = np.column_stack([is_active, self.is_active[:, :-1]])
        self.is_first = np.column_stack([is_first, self.is_first[:, :-1]])
        self.weight = np.where(self.is_first, self.next_weight, self.weight)
        above = np.vstack([np.zeros((1, columns), np.int32), self.partial_sum[:-1]])
        self.partial_sum = above + self.weight * self.activation
        self.passing, self.target = np.vstack([weight, self.passing[:-1]]), np.vstack([target, self.target[:-1]])
        arrived = self.target == np.arange(rows)[:, None]
        self.next_weight = np.where(arrived, self.passing, self.next_weight)

    def leaving(self, blocks: list[_Block], cycle: int) -> list[tuple[int, int, _Block, int]]:
        """The completed sums in the last row: column, row of the product, block, value."""
        rows, columns = self.weight.shape
        return [
            (column, m, block, int(self.partial_sum[-1, column]))
            for block in blocks
            for column in range(columns)
            if 0 <= (m := cycle - block.start - (rows - 1) - column) < len(block.x)
        ]

    def frame(self, cycle: int) -> CellFrame:
        return CellFrame(cycle, self.weight, self.activation, self.partial_sum, self.is_active)
