"""Symbols of many tensors in few rANS streams. Each stream begins with 16 bytes of states, which small tensors share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..records import dataclass
from . import rans
from .byte_stream import ByteReader, ByteWriter
from .frequencies import TOTAL, Frequencies

MOST_CONTEXTS = 256  # of a stream
LARGE = 1 << 24  # symbols: a stream with so many takes no more


@dataclass(frozen=True)
class SymbolSegment:
    """Symbols with their tables. Without `contexts` all have the first table; `symbols` is missing until they are decoded."""

    count: int
    tables: Frequencies
    contexts: np.ndarray | None = None
    symbols: np.ndarray | None = None

    @classmethod
    def of_symbols(
        cls, symbols: np.ndarray, width: int, contexts: np.ndarray | None = None, context_count: int = 1
    ) -> SymbolSegment:
        """Symbols below `width`, with the tables that code them best."""
        keys = symbols.astype(np.intp) if contexts is None else contexts.astype(np.intp) * width + symbols
        counts = np.bincount(keys.ravel(), minlength=width * context_count).reshape(context_count, width)
        return cls(symbols.size, Frequencies.of_counts(counts), contexts, symbols.ravel())

    @property
    def bits(self) -> float:
        """The bits that its symbols take."""
        assert self.symbols is not None
        chosen = self.tables.rows[0 if self.contexts is None else self.contexts, self.symbols]
        return float(np.bincount(chosen, minlength=TOTAL + 1) @ _BITS)


_BITS = np.concatenate([[0.0], -np.log2(np.arange(1, TOTAL + 1) / TOTAL)])  # of a symbol, by its frequency


def write_segments(out: ByteWriter, segments: Sequence[SymbolSegment]) -> None:
    """Write the symbols; tables, counts and contexts are known to the reader."""
    for group in _groups(segments):
        symbols = np.concatenate([np.asarray(one.symbols, np.uint8) for one in group])
        out.block(rans.encode(symbols, _tables(group), _contexts(group)))


def read_segments(content: ByteReader, segments: Sequence[SymbolSegment]) -> list[np.ndarray]:
    """The symbols of each segment."""
    found: list[np.ndarray] = []
    for group in _groups(segments):
        counts = [one.count for one in group]
        symbols = rans.decode(content.block(), sum(counts), _tables(group), _contexts(group))
        found += np.split(symbols, np.cumsum(counts)[:-1])
    return found


def _groups(segments: Sequence[SymbolSegment]) -> Iterator[list[SymbolSegment]]:
    """The segments of each stream."""
    group: list[SymbolSegment] = []
    for one in segments:
        contexts = sum(len(other.tables.rows) for other in [*group, one])
        if group and (contexts > MOST_CONTEXTS or sum(other.count for other in group) >= LARGE):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _tables(group: Sequence[SymbolSegment]) -> Frequencies:
    """The tables of all segments, one after the other, with as many symbols as the widest has."""
    width = max(one.tables.rows.shape[1] for one in group)
    return Frequencies(
        np.concatenate([np.pad(one.tables.rows, ((0, 0), (0, width - one.tables.rows.shape[1]))) for one in group])
    )


def _contexts(group: Sequence[SymbolSegment]) -> np.ndarray | None:
    """The number of each symbol's table."""
    if len(group) == 1 and group[0].contexts is None:
        return None
    firsts = np.cumsum([0, *(len(one.tables.rows) for one in group)])
    parts = [
        np.full(one.count, first, np.uint8) if one.contexts is None else one.contexts + np.uint8(first)
        for one, first in zip(group, firsts, strict=False)
    ]
    return np.concatenate(parts)
