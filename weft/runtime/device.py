"""What a device is: it holds buffers, copies them to and from NumPy, and runs programs of nodes.

A new device is one file with a subclass of `Device` and one call of `register`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import UserError
from ..graph.node import Node, Shape
from ..knobs import KNOBS, knobs


@dataclass(eq=False, slots=True)
class Buffer:
    """A value in the memory of a device. Nobody writes to it once it is there."""

    device: Device
    shape: Shape
    dtype: DType
    content: Any  # what the device keeps: an array, a pointer, nothing; a tuple for a node with several results
    version: int = 0  # how often a compiled function has replaced the content in place

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Program:
    """Nodes to compute, each after what it depends on, and those whose values are wanted."""

    order: Sequence[Node]
    wanted: Sequence[Node]


class Device(ABC):
    """A place where values live and programs run."""

    name: str

    @abstractmethod
    def put(self, array: np.ndarray, dtype: DType) -> Buffer:
        """A buffer with the array's content; the array is shared where the device can read it in place."""

    @abstractmethod
    def get(self, buffer: Buffer) -> np.ndarray:
        """The content as an array, shared where possible; the caller must not write to it."""

    @abstractmethod
    def run(self, program: Program) -> list[Buffer]:
        """Compute the program's nodes; the values of the wanted ones, in their order.

        A node that has a `value` is not computed but read.
        """

    def __repr__(self) -> str:
        return f"weft.device({self.name!r})"

    def __str__(self) -> str:
        return self.name


_devices: dict[str, Device] = {}


def register(device: Device) -> Device:
    """Make a device known by its name."""
    _devices[device.name] = device
    KNOBS["device"].choices.add(device.name)
    return device


def devices() -> list[Device]:
    """All devices of this machine."""
    return list(_devices.values())


def device(name: str | Device | None = None) -> Device:
    """A device by its name; without one, the default device (setting `device`).

    >>> device("reference")
    weft.device('reference')
    """
    if name is None:
        name = knobs.device
    elif isinstance(name, Device):
        return name
    if not isinstance(name, str) or name not in _devices:
        raise UserError("device", f"there is no device {name!r}. Known: {', '.join(_devices)}.")
    return _devices[name]
