"""The device of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..knobs import knobs
from ..runtime import Device
from ..runtime import device as find_device


@contextmanager
def on(name: str | None) -> Iterator[Device]:
    """Inside, computations use this device, or the default one; a missing device is an error."""
    with knobs.set(device=name or knobs.device):
        yield find_device()
