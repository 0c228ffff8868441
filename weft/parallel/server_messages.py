"""The messages between a parameter server and its workers: a few numbers, and an array for each parameter, as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..mesh.links import Link
from ..records import dataclass
from ..tensor import Tensor

ALIGNMENT = 64  # bytes, of every array in a message
PARAMETERS, FINAL = 0, 1  # sent by the server: FINAL ends the run
GRADIENTS, DONE = 0, 1  # sent by a worker: DONE if it has no batch left


class ServerHeader(NamedTuple):
    """The numbers of a message. A worker sends back the version of the parameters that it used."""

    kind: int
    version: int  # of the parameters: the number of updates made
    loss: float = 0.0  # of the batch, from a worker
    computing: float = 0.0  # seconds from receiving the parameters to the gradients, from a worker
    waiting: float = 0.0  # seconds that it waited for the parameters before


@dataclass(frozen=True)
class ServerMessage:
    """A received message; its arrays are views of one buffer."""

    header: ServerHeader
    arrays: list[np.ndarray]


class MessageLayout:
    """The offsets of the arrays in a message. Gradients have the shapes and dtypes of the parameters."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.types = [(p.shape, np.dtype(p.dtype.numpy)) for p in parameters]
        self.begins, end = [], ALIGNMENT  # the header comes first
        for shape, dtype in self.types:
            self.begins.append(end)
            end += -(-int(np.prod(shape)) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        self.nbytes = end

    def send(self, link: Link, header: ServerHeader, tensors: Sequence[Tensor]) -> None:
        """Send the header and an array for each parameter; without tensors, the arrays are unspecified."""
        buffer = np.zeros(self.nbytes, np.uint8)
        buffer[: 8 * len(header)].view(np.float64)[:] = header
        for array, tensor in zip(self._arrays(buffer), tensors, strict=False):
            array[...] = tensor.numpy()
        link.send(buffer)

    def receive(self, link: Link) -> ServerMessage:
        """Wait for a message."""
        buffer = link.receive((self.nbytes,), np.dtype(np.uint8))
        kind, version, *times = buffer[: 8 * len(ServerHeader._fields)].view(np.float64).tolist()
        return ServerMessage(ServerHeader(int(kind), int(version), *times), self._arrays(buffer))

    def zeros(self) -> list[np.ndarray]:
        """Zero-filled arrays with the shapes of a message."""
        return self._arrays(np.zeros(self.nbytes, np.uint8))

    def _arrays(self, buffer: np.ndarray) -> list[np.ndarray]:
        return [
            buffer[begin : begin + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
            for begin, (shape, dtype) in zip(self.begins, self.types, strict=True)
        ]
