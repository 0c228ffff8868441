"""Running statistics in data-parallel training: every process applies the statistics of all batches of a step, in the order of the ranks.

So they are those of one process that sees these batches one after another. They are sent together, after the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..mesh import mesh as meshes
from ..ops.collective import all_gather
from ..ops.movement import concat, cut
from ..tensor import Tensor

Apply = Callable[..., None]
_WAITING: ContextVar[list[tuple[Apply, tuple[Tensor, ...]]] | None] = ContextVar("waiting_statistics", default=None)


def apply_statistics(apply: Apply, *statistics: Tensor) -> None:
    """Call a function with statistics of a batch, vectors of one dtype: now, or with those of each rank when the step has all of them."""
    waiting = _WAITING.get()
    if waiting is None:
        apply(*statistics)
    else:
        waiting.append((apply, statistics))


@contextmanager
def statistics_of_ranks(axis: str | None) -> Iterator[None]:
    """Inside, statistics wait for those of the other processes along an axis."""
    if axis is None or meshes.current().is_single(axis):
        yield
        return
    token = _WAITING.set([])
    try:
        yield
        waiting = _WAITING.get() or []
    finally:
        _WAITING.reset(token)
    if not waiting:
        return
    gathered, begin = all_gather(concat([s for _, statistics in waiting for s in statistics]), axis), 0
    for apply, statistics in waiting:
        parts = []
        for one in statistics:
            parts.append(cut(gathered, 1, begin, begin + one.shape[0]))
            begin += one.shape[0]
        for rank in range(gathered.shape[0]):
            apply(*(part[rank] for part in parts))
