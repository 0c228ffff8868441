"""The threads of a program of a GPU kernel, their registers, and the memory they use. See ptx_machine.py."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

WARP = 32
NOBODY, MANY = -1, -2  # instead of the number of a warp
Values = np.ndarray
_REGISTERS = {
    "p": np.bool_,
    "rs": np.uint16,
    "r": np.uint32,
    "rd": np.uint64,
    "f": np.float32,
    "fd": np.float64,
    "h": np.uint16,
}


class Fault(AssertionError):
    """A kernel does what a GPU must not be asked to do."""


class Machine:
    """Memory and threads of one program of a kernel."""

    def __init__(self, threads: int, number: int, arguments: Sequence[int], memory: Memory, shared: int) -> None:
        self.arguments, self.memory, self.shared = arguments, memory, SharedMemory(shared)
        lanes = np.arange(threads, dtype=np.uint32)
        self.special = {
            "%tid.x": lanes, "%ctaid.x": np.full(threads, number, np.uint32), "%laneid": lanes % WARP,
            **{name: np.zeros(threads, np.uint32) for name in ("%tid.y", "%tid.z", "%ctaid.y", "%ctaid.z")},
        }  # fmt: skip
        self.registers: dict[str, Values] = {}
        self.active = np.ones(threads, np.bool_)
        self.is_whole = True  # all threads are active

    def activate(self, threads: Values) -> None:
        self.active, self.is_whole = threads, bool(threads.all())

    def write(self, name: str, values: Values, threads: Values | None = None) -> None:
        """Set a register, in the active threads or in some of them."""
        kind = _REGISTERS[re.match(r"%([a-z]+)", name)[1]]  # type: ignore[index]
        values = np.broadcast_to(as_type(values, kind), self.active.shape)
        if threads is None and self.is_whole:
            self.registers[name] = values
            return
        kept = self.registers.get(name)
        if kept is None:
            kept = np.zeros(self.active.shape, kind)
        self.registers[name] = np.where(self.active if threads is None else threads, values, kept)

    def whole_warps(self) -> Values:
        """The active threads as [warps, lanes], where no warp may be active in part."""
        active = self.active.reshape(-1, WARP)
        if (active != active[:, :1]).any():
            raise Fault("an instruction of whole warps, in a part of one")
        return active


def as_type(values: Values, kind: Any) -> Values:
    """The same bits as another type; wider and narrower ones keep the low bits."""
    kind = np.dtype(kind)
    if values.dtype == kind:
        return values
    if values.dtype == np.bool_ or kind == np.bool_:
        return values.astype(kind)
    if values.dtype.itemsize == kind.itemsize:
        return values.view(kind)
    bits = values.view(f"u{values.dtype.itemsize}").astype(f"u{kind.itemsize}")
    return bits.view(kind)


# --- memory -----------------------------------------------------------------------------------------------------------------------


class Memory:
    """Buffers of the host, by address."""

    def __init__(self, buffers: Iterable[tuple[int, int]]) -> None:
        known = sorted(buffers)
        self.begins = np.array([address for address, _ in known], np.int64)
        self.ends = np.array([address + nbytes for address, nbytes in known], np.int64)
        self.first = int(self.begins[0]) & ~255
        span = int(self.ends.max()) - self.first
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * (span + 8)).from_address(self.first))

    def places(self, addresses: Values, nbytes: int) -> Values:
        """Positions of what lies at addresses, which must be known memory."""
        addresses = addresses.astype(np.int64)
        if (addresses % nbytes).any():
            raise Fault(f"an address that is not a multiple of {nbytes}")
        found = np.searchsorted(self.begins, addresses, "right") - 1
        if (found < 0).any() or (addresses + nbytes > self.ends[found]).any():
            raise Fault("an address outside of known memory")
        return addresses - self.first


class SharedMemory:
    """The memory that threads of a program share, and which warps used each byte since the last barrier."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(-(-nbytes // 16) * 16, 0xFF, np.uint8)  # NaN: what nobody wrote shows
        self.writer, self.reader = np.full((2, self.bytes.size), NOBODY, np.int32)

    def places(self, addresses: Values, nbytes: int) -> Values:
        addresses = addresses.astype(np.int64)
        if (addresses % nbytes).any() or (addresses < 0).any() or (addresses + nbytes > self.bytes.size).any():
            raise Fault("an address outside of shared memory, or one that is not aligned")
        return addresses

    def load(self, places: Values, nbytes: int, warps: Values) -> Values:
        """Bytes at some places; it is an error if another warp has written them since the last barrier."""
        where, who = places[:, None] + np.arange(nbytes), np.broadcast_to(warps[:, None], (len(places), nbytes))
        if ((self.writer[where] != NOBODY) & (self.writer[where] != who)).any():
            raise Fault("a warp reads shared memory that another one has written since the last barrier")
        self._used(self.reader, where, who)
        return self.bytes[where]

    def store(self, places: Values, values: Values, warps: Values) -> None:
        """Warps may write the same value, as Triton has them do; what another one has read must not change until the next barrier."""
        where = places[:, None] + np.arange(values.shape[1])
        who = np.broadcast_to(warps[:, None], where.shape)
        others = [(user[where] != NOBODY) & (user[where] != who) for user in (self.reader, self.writer)]
        if ((others[0] | others[1]) & (self.bytes[where] != values)).any():
            raise Fault("a warp writes shared memory that another one has read or written since the last barrier")
        self.bytes[where] = values
        if (self.bytes[where] != values).any():
            raise Fault("two threads write different values to the same shared memory")
        self._used(self.writer, where, who)

    @staticmethod
    def _used(users: Values, where: Values, who: Values) -> None:
        many = (users[where] != NOBODY) & (users[where] != who)
        users[where] = who
        users[where[many | (users[where] != who)]] = MANY

    def barrier(self) -> None:
        self.writer[:], self.reader[:] = NOBODY, NOBODY
