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
def profiled_on(name: str | None) -> Iterator[Device]:
    """The same for a profile: a device whose programs have no kernels is rejected."""
    with on(name) as device:
        _require(device.has_kernels, "profile", f"a device that runs kernels is required, got {device}")
        yield device


@contextmanager
def timed_on(name: str | None) -> Iterator[Device]:
    """The same where latencies are measured: a device whose time no clock can measure is rejected."""
    with on(name) as device:
        needed = f"a device whose latency can be measured is required, got {device}"
        then = f"; for {device} use method=int8, then weft profile RUN device={device}" if device.is_modelled else ""
        _require(device.has_kernels and not device.is_modelled, "weft compress", needed, then)
        yield device


@contextmanager
def training_on(name: str | None) -> Iterator[Device]:
    """The same for a training: a device that only runs trained networks is rejected."""
    with on(name) as device:
        _require(device.trains, "train", f"a device that trains is required, got {device}")
        yield device


def _require(is_fit: bool, where: str, needed: str, then: str = "") -> None:
    if not is_fit:
        raise UserError(where, f"{needed}. Use cpu or cuda{then}.")
