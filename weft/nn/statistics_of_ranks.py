"""Running statistics in data-parallel training: every process applies the statistics of all batches of a step, in their order.

So they are those of one process that sees these batches one after another. They are sent together: after the forward pass, or, if each
process computes several batches of a step, after the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from ..mesh import mesh as meshes
from ..ops.collective import all_gather
from ..ops.movement import concat, cut, reshape, stack
from ..tensor import Tensor

Apply = Callable[..., None]


class CollectedStatistics:
    """The statistics of one batch that have not been applied, and where they belong."""

    def __init__(self) -> None:
        self._applied: list[tuple[Apply, tuple[int, ...]]] = []  # functions, and the lengths of what they are given
        self._collected: list[Tensor] = []

    def add(self, apply: Apply, *statistics: Tensor) -> None:
        self._applied.append((apply, tuple(s.shape[0] for s in statistics)))
        self._collected += statistics

    def vector(self) -> list[Tensor]:
        """All of them behind each other, in a list; an empty list if there are none. They are forgotten then, but not where they belong."""
        found, self._collected = self._collected, []
        return [concat(found)] if found else []

    def apply_rows(self, rows: Tensor) -> None:
        """Apply such vectors of several batches, one after another."""
        for row in range(rows.shape[0]):
            begin, given = 0, rows[row]
            for apply, lengths in self._applied:
                parts = []
                for length in lengths:
                    parts.append(cut(given, 0, begin, begin + length))
                    begin += length
                apply(*parts)

    def apply_of_ranks(self, vectors: Sequence[Tensor], axis: str) -> None:
        """Apply such vectors of all processes along an axis, each of which has those of consecutive batches."""
        gathered = all_gather(stack(vectors), axis)
        self.apply_rows(reshape(gathered, (-1, gathered.shape[-1])))


_COLLECTED: ContextVar[CollectedStatistics | None] = ContextVar("collected_statistics", default=None)


def apply_statistics(apply: Apply, *statistics: Tensor) -> None:
    """Call a function with statistics of a batch, vectors of one dtype: now, or with those of each batch when the step has all of them."""
    collected = _COLLECTED.get()
    if collected is None:
        apply(*statistics)
    else:
        collected.add(apply, *statistics)


@contextmanager
def collecting_statistics() -> Iterator[CollectedStatistics]:
    """Inside, statistics are collected, and not applied."""
    collected = CollectedStatistics()
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


@contextmanager
def statistics_of_ranks(axis: str | None) -> Iterator[None]:
    """Inside, statistics wait for those of the other processes along an axis."""
    if axis is None or meshes.current().is_single(axis):
        yield
        return
    with collecting_statistics() as collected:
        yield
    for vector in collected.vector():
        collected.apply_of_ranks([vector], axis)
