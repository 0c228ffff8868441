"""Frequencies of symbols for rANS: counts are scaled to a power of two, every symbol that occurs gets at least one slot, and the cost is least."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..compiler.cpu.special.entropy import SCALE
from ..errors import UserError
from ..records import dataclass

TOTAL = 1 << SCALE


@dataclass(frozen=True)
class Frequencies:
    """The frequency of each symbol in each context: (contexts, symbols), each row adds up to TOTAL."""

    rows: np.ndarray

    @classmethod
    def of_counts(cls, counts: np.ndarray) -> Frequencies:
        """The frequencies that code these counts, one row a context, in the fewest bits."""
        return cls(np.stack([_scaled(row) for row in np.atleast_2d(counts)]))

    def check(self) -> None:
        """Refuse rows that are no frequencies: they come from files."""
        good = self.rows.ndim == 2 and 1 <= self.rows.shape[0] <= 256 and 1 <= self.rows.shape[1] <= 256
        if not good or (self.rows < 0).any() or (self.rows.sum(axis=1) != TOTAL).any():
            raise UserError("rans", f"frequencies of up to 256 symbols that add up to {TOTAL} are required.")

    def bits(self, counts: np.ndarray) -> float:
        """The bits that symbols with these counts take."""
        rows, counts = self.rows, np.atleast_2d(counts)
        used = counts > 0
        return float((counts[used] * -np.log2(rows[used] / TOTAL)).sum())

    @cached_property
    def decoding(self) -> np.ndarray:
        """The entry of every slot: see compiler/cpu/special/entropy.py."""
        tables = np.zeros((len(self.rows), TOTAL), np.uint32)
        for table, row in zip(tables, self.rows, strict=True):
            symbols = np.repeat(np.arange(len(row), dtype=np.uint32), row)
            offsets = np.arange(TOTAL) - np.repeat(np.cumsum(row) - row, row)
            table[:] = symbols | ((row[symbols] - 1) << 8).astype(np.uint32) | (offsets << 20).astype(np.uint32)
        return tables

    @cached_property
    def encoding(self) -> np.ndarray:
        """Frequency and first slot of every symbol."""
        tables = np.zeros((len(self.rows), 256), np.uint32)
        first = np.cumsum(self.rows, axis=1) - self.rows
        tables[:, : self.rows.shape[1]] = self.rows.astype(np.uint32) | (first.astype(np.uint32) << 16)
        return tables


def _scaled(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Counts scaled to TOTAL. Rounding errors are moved to the symbols where they cost least."""
    given = np.asarray(counts, np.float64)
    if not given.any():  # a context that does not occur
        row = np.zeros(len(given), np.int64)
        row[0] = TOTAL
        return row
    occurs = given > 0
    if occurs.sum() > TOTAL:
        raise UserError("rans", f"at most {TOTAL} symbols are required, got {occurs.sum()}.")
    row = np.where(occurs, np.maximum(1, np.floor(given / given.sum() * TOTAL)), 0).astype(np.int64)
    while (missing := TOTAL - row.sum()) != 0:
        step = 1 if missing > 0 else -1
        changed = row + step
        possible = occurs & (changed >= 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.where(possible, given * np.log2(changed / np.maximum(row, 1)), -np.inf)
        row[int(np.argmax(gain))] += step
    return row
