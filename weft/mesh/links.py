"""Links: messages between two processes of one machine. A link has one sender, one receiver, and a few slots between them.

Sending blocks only if all slots are full, so two processes may send to each other before either receives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from zlib import crc32

import numpy as np

from ..compiler.cpu.collective.layout import FAILED, LINE, TABLE, Context
from ..errors import UserError
from .channels import SharedMemory, waiting_words
from .connection import control_page
from .host_calls import native_function
from .mesh import Mesh, next_number


class Link:
    """One end of a link."""

    def __init__(self, mesh: Mesh, address: int, peer: int, slots: int, slot_bytes: int) -> None:
        self._mesh, self._most = mesh, slot_bytes
        self._count = np.zeros(1, np.int64)
        self._words = waiting_words(control_page(), 1)
        given = {
            Context.INDEX: peer, Context.LANES: slots, Context.PUBLISHED: address, Context.RECEIVED: address + LINE,
            Context.STAGING: address + 2 * LINE, Context.SLOT_BYTES: _padded(slot_bytes),
            Context.SEQUENCES: self._count.ctypes.data,
        }  # fmt: skip
        for word, value in given.items():
            self._words[word] = value

    @staticmethod
    def nbytes(slots: int, slot_bytes: int) -> int:
        """The bytes of shared memory of a link."""
        return 2 * LINE + slots * _padded(slot_bytes)

    def send(self, x: np.ndarray) -> None:
        """Send an array. The receiver must expect this shape and dtype."""
        if x.nbytes > self._most:
            raise UserError("link", f"at most {self._most} bytes fit in a message, got {x.nbytes}.")
        self._call("link.send", np.ascontiguousarray(x))

    def ready(self) -> bool:
        """Whether a message has arrived, so that `receive` would not block."""
        sent = ctypes.c_int64.from_address(int(self._words[Context.PUBLISHED])).value
        return sent > int(self._count[0])

    def receive(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Wait for the next array."""
        y = np.empty(tuple(shape), dtype)
        self._call("link.receive", y)
        return y

    def _call(self, symbol: str, data: np.ndarray) -> None:
        status = (ctypes.c_int64 * (TABLE + 1))()
        tag = crc32(f"{data.shape} {data.dtype}".encode()) & 0xFFFF
        call = native_function(symbol, (False, True, False, True, False))
        call(data.ctypes.data, data.nbytes, self._words.ctypes.data, tag, ctypes.addressof(status))
        if status[0] == FAILED:
            raise self._mesh.failure(int(status[1]))


def _check_one_machine(mesh: Mesh) -> None:
    if mesh.engine != "local":
        raise UserError(
            "link",
            "pipelines and parameter servers require shared memory, and these ranks are connected by MPI. "
            "Use parallel=data:N or model:N between machines.",
        )


def _padded(slot_bytes: int) -> int:
    """The bytes of a slot: a label, and the message."""
    return LINE + -(-slot_bytes // LINE) * LINE


class Neighbours:
    """The links of a process to its predecessor and its successor along an axis; None at the ends.

    `messages` are the maximum sizes in bytes between the processes i and i + 1 along the axis.
    """

    def __init__(self, mesh: Mesh, axis: str, messages: Sequence[int], slots: int) -> None:
        size, here = mesh.size(axis), mesh.index(axis)
        _check_one_machine(mesh)
        if len(messages) != size - 1:
            raise UserError("link", f"a size is required between each two of {size} processes, got {len(messages)}.")
        sizes = [Link.nbytes(slots, most) for most in messages]
        group = 2 * sum(sizes)
        self._memory = SharedMemory(next_number(), max(LINE, group * mesh.groups(axis)), control_page())
        start = self._memory.address + mesh.group(axis) * group

        def link(between: int, backward: bool, peer: int) -> Link | None:
            if not 0 <= between < size - 1:
                return None
            place = start + 2 * sum(sizes[:between]) + (sizes[between] if backward else 0)
            return Link(mesh, place, peer, slots, messages[between])

        self.to_next, self.from_next = link(here, False, here + 1), link(here, True, here + 1)
        self.from_previous, self.to_previous = link(here - 1, False, here - 1), link(here - 1, True, here - 1)


class Star:
    """The links between process 0 along an axis and each of the others: `to[i]` and `received_from[i]` connect to process i.

    Process 0 has links to all others, the others have one to process 0. `message` is the maximum size in bytes, in either direction.
    """

    def __init__(self, mesh: Mesh, axis: str, message: int, slots: int = 1) -> None:
        size, here = mesh.size(axis), mesh.index(axis)
        _check_one_machine(mesh)
        each = Link.nbytes(slots, message)
        group = 2 * (size - 1) * each
        self._memory = SharedMemory(next_number(), group * mesh.groups(axis), control_page())
        start = self._memory.address + mesh.group(axis) * group

        def link(outer: int, outward: bool, peer: int) -> Link:
            place = start + (2 * (outer - 1) + (0 if outward else 1)) * each
            return Link(mesh, place, peer, slots, message)

        outer = range(1, size) if here == 0 else [here]
        peers = {o: o if here == 0 else 0 for o in outer}
        self.to = {peer: link(o, here == 0, peer) for o, peer in peers.items()}
        self.received_from = {peer: link(o, here != 0, peer) for o, peer in peers.items()}
