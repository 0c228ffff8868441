"""The device of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UserError
from ..knobs import knobs
from ..runtime import Device
from ..runtime import device as find_device


@contextmanager
def on(name: str | None) -> Iterator[Device]:
    """Inside, computations use this device, or the default one; a missing device is an error."""
    with knobs.set(device=name or knobs.device):
        yield find_device()


@contextmanager
def training_on(name: str | None) -> Iterator[Device]:
    """The same for a training: a device that only runs trained networks is rejected."""
    with on(name) as device:
        if not device.trains:
            raise UserError("train", f"a device that trains is required, got {device}. Use cpu or cuda.")
        yield device
