"""Processes of one machine among those that MPI connects: they exchange through its memory.

An all-reduce between machines with g processes each is hierarchical: through the memory of a machine, each of its processes combines a part of
what all of them have, exchanges that part with the processes of the same number on the other machines, and copies the parts of the others. So a
machine sends each number once, and not once for each of its processes. The bits are those of the one tree over all processes, because
consecutive processes, a power of two of them, are a subtree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ....dtypes import DType
from ..ir_builder import I64, Value
from .layout import Context, MpiContext
from .shared_memory import ExchangeCode
from .writer import CollectiveCode


class NeighbourCode(ExchangeCode):
    """The code of a collective in which some processes share memory. Only the first thread of a process takes part."""

    def prepare_neighbours(self, dtype: DType, combine: str, size: int) -> None:
        """Start with the context of MPI, which refers to that of the shared memory."""
        CollectiveCode.prepare(self, dtype, combine, size)

    def finish(self) -> None:
        CollectiveCode.finish(self)

    def neighbour_counts(self) -> list[int]:
        """How many processes each of several machines may have: whole subtrees. Sums of 16-bit floats are rounded once, at the end."""
        if self.dtype.is_half and self.combine == "sum":
            return []
        return [2**k for k in range(1, 12) if 2**k < self.size and self.size % 2**k == 0]

    def has_neighbours(self, count: int) -> Value:
        return self.icmp_signed("==", self.word(MpiContext.NEIGHBOUR_COUNT), self.i64(count))

    def all_are_neighbours(self) -> Value:
        return self.has_neighbours(self.size)

    def write_among_neighbours(self, name: str) -> None:
        """The whole collective through shared memory."""
        with self.neighbours(self.size):
            getattr(ExchangeCode, f"write_{name}")(self)

    @contextmanager
    def neighbours(self, count: int) -> Iterator[None]:
        """Inside, the group is the given number of processes of this machine."""
        before = self.context, self.me, self.size, self.of
        self.context = self.address(MpiContext.NEIGHBOURS)
        self.me, self.size = self.word(Context.INDEX), count
        self.of = {**self.of, "tid": self.i64(0), "threads": self.i64(1)}
        self.lanes, self.slot_bytes = self.word(Context.LANES), self.word(Context.SLOT_BYTES)
        self.own_count, self.sequence = self.address(Context.SEQUENCES), self.variable(I64)
        self.store(self.read(self.own_count, 0, I64), self.sequence)
        yield
        self.write(self.load(self.sequence, typ=I64), self.own_count, 0)
        self.context, self.me, self.size, self.of = before

    # --- the parts of a hierarchical all-reduce ---------------------------------------------------------------------------------------

    @contextmanager
    def neighbour_pieces(self) -> Iterator[tuple[Value, Value]]:
        """A loop over pieces that fit in a slot of the shared memory: where one begins, and its length."""
        nbytes = self.read(self.address(MpiContext.NEIGHBOURS), Context.SLOT_BYTES, I64)
        most = self.sdiv(nbytes, self.i64(self.itemsize))
        with self.loop(0, self.of["count"], most, name="piece") as begin:
            yield begin, self.minimum(most, self.sub(self.of["count"], begin))

    def combine_with_neighbours(
        self, count: int, x: Value, y: Value, length: Value, *, by_parts: bool
    ) -> tuple[Value, Value]:
        """Combine a piece over the processes of this machine: all of it, or the part of this process; where that begins and ends."""
        with self.neighbours(count):
            self.copy(self.slot(self.me), x, self.nbytes(length))
            self.publish()
            first, last = self.share(length, self.me, self.i64(count)) if by_parts else (self.i64(0), length)
            self.combine_all([self.slot(r) for r in range(count)], [y], first, last)
            self.next()
        return first, last

    def share_with_neighbours(self, count: int, y: Value, length: Value) -> None:
        """Give the part of this process to those of this machine, and copy theirs."""
        with self.neighbours(count):
            first, last = self.share(length, self.me, self.i64(count))
            own = self.place(self.slot(self.me), first)
            self.copy(own, self.place(y, first), self.nbytes(self.sub(last, first)))
            self.publish()
            with self.loop(0, count, name="part") as peer, self._if_other(peer):
                begin, end = self.share(length, peer, self.i64(count))
                source = self.place(self.slot(peer), begin)
                self.copy(self.place(y, begin), source, self.nbytes(self.sub(end, begin)))
            self.next()

    def _if_other(self, peer: Value) -> AbstractContextManager[object]:
        found: AbstractContextManager[object] = self.if_then(self.icmp_signed("!=", peer, self.me))
        return found
