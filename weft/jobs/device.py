"""Where a job computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..knobs import knobs
from ..runtime import Device
from ..runtime import device as find_device


@contextmanager
def on(name: str | None) -> Iterator[Device]:
    """Inside, everything is computed on this device, or on the default one; if there is no such device that is an error."""
    with knobs.set(device=name or knobs.device):
        yield find_device()
