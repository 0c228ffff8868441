"""Memory that shows when it is read before it was written: filled with a pattern that is nan in every float dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..runtime import native

PATTERN = 0xFF  # nan for floats, -1 or the largest number for integers


@contextmanager
def poisoned() -> Iterator[None]:
    """Within the block, compiled programs on the CPU find all memory that they may write to filled with a pattern.

    >>> import weft
    >>> with poisoned():
    ...     weft.jit(lambda x: x + 1.0)(weft.ones(3)).tolist()
    [2.0, 2.0, 2.0]
    """

    def fill(memory: np.ndarray) -> None:
        memory.reshape(-1).view(np.uint8)[:] = PATTERN

    native.BEFORE_USE.append(fill)
    try:
        yield
    finally:
        native.BEFORE_USE.remove(fill)
