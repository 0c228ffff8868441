"""Training without compiling: for tests of what is trained, not of how it is computed. Compiling takes longer than small trainings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from weft.knobs import knobs
from weft.tracing.compiled import CallMemory
from weft.train import memory


@contextmanager
def uncompiled() -> Iterator[None]:
    """Networks are interpreted by the reference device, and the memory of their steps is not planned either."""
    with knobs.set(device="reference"), mock.patch.object(memory, "need", return_value=CallMemory(0, 0, 0, 0)):
        yield
