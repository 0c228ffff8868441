"""Collectives through MPI: the functions of the family `mpi`, linked instead of those of `collective` where MPI connects the processes.

MPI only moves data, by non-blocking messages between pairs of processes. weft computes the sums, in the tree that all engines use, so that
the bits do not depend on the connection. The first thread of a process does all of it, the others go on to the next barrier. While it
waits, it looks
whether the processes should give up.

Processes along an axis that are all on one machine exchange through its memory instead (see shared_memory.py). If several machines have equally
many, all-reduces are hierarchical: see hierarchy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from llvmlite import ir

from ....dtypes import DType, as_dtype
from ..ir_builder import I8, I32, I64, PTR, Int, Value, new_module
from ..library import library
from .hierarchy import NeighbourCode
from .layout import TAG_BITS, Context, MpiContext
from .writer import TYPES

_TRANSFER = ir.FunctionType(I32, [PTR, I64, I64, I64, I64, I64, PTR]).as_pointer()  # MPI_Isend, MPI_Irecv
_TEST = ir.FunctionType(I32, [I64, PTR, PTR, PTR]).as_pointer()  # MPI_Testall
MESSAGE_BYTES = 1 << 30  # the most of one message: MPI counts in 32 bits
MESSAGE_TAGS = 0x7FFF  # every library allows tags up to this
SMALL_BYTES = 1 << 14  # below, each process gets everything and sums all of it, in one exchange instead of two


@library("mpi")
def make(symbol: str) -> ir.Module:
    """mpi.NAME.DTYPE.COMBINE.SIZE: arguments as in phases.ARGUMENTS."""
    _, name, dtype, combine, size = symbol.split(".")
    module = new_module(symbol)
    code = _Messages.begin(module, symbol, TYPES)
    code.prepare(as_dtype(dtype), combine, int(size))
    with code.if_then(code.icmp_signed("==", code.of["tid"], code.i64(0))):
        code.note_position()
        with code.if_else(code.all_are_neighbours()) as (inside, between):
            with inside:
                code.write_among_neighbours(name)
            with between:
                getattr(code, f"write_{name}")()
    code.finish()
    code.done()
    return module


class _Messages(NeighbourCode):
    """The code of one collective."""

    def prepare(self, dtype: DType, combine: str, size: int) -> None:
        self.prepare_neighbours(dtype, combine, size)
        self.part_bytes = self.word(Context.SLOT_BYTES)
        self.pending = self.variable(I64)  # requests since the last wait
        self.store(self.i64(0), self.pending)
        self.flag = self.variable(I32)
        self.number_of: Callable[[Value], Value] = lambda peer: peer  # along the axis

    def note_position(self) -> None:
        """Count this collective: the watching threads of the processes compare where they are."""
        count = self.lshr(self.word(MpiContext.POSITION), self.i64(TAG_BITS))
        position = self.or_(self.shl(self.plus(count, 1), self.i64(TAG_BITS)), self.of["tag"])
        self.write(position, self.context, MpiContext.POSITION)

    # --- messages -------------------------------------------------------------------------------------------------------------

    def _transfer(self, function: int, place: Value, nbytes: Value, peer: Value) -> None:
        number = self.load(self.pending, typ=I64)
        offset = self.mul(number, self.word(MpiContext.REQUEST_BYTES))
        request = self.at(self.address(MpiContext.REQUESTS), offset, I8)
        tag = self.and_(self.of["tag"], self.i64(MESSAGE_TAGS))
        byte, communicator = self.word(MpiContext.BYTE), self.word(MpiContext.COMMUNICATOR)
        call = self.inttoptr(self.word(function), _TRANSFER)
        error = self.call(call, [place, nbytes, byte, self.number_of(peer), tag, communicator, request])
        self.give_up_if(self.icmp_signed("!=", error, ir.Constant(I32, 0)), -1)
        self.store(self.plus(number, 1), self.pending)

    def send(self, place: Value, nbytes: Value, peer: Value) -> None:
        self._transfer(MpiContext.SEND, place, nbytes, peer)

    def receive(self, place: Value, nbytes: Value, peer: Value) -> None:
        self._transfer(MpiContext.RECEIVE, place, nbytes, peer)

    def wait(self) -> None:
        """Wait until all messages of this process have been sent and received."""
        looks = self.new_count()
        test = self.inttoptr(self.word(MpiContext.TEST), _TEST)

        def waiting() -> Value:
            requests, statuses = self.address(MpiContext.REQUESTS), self.address(MpiContext.STATUSES)
            error = self.call(test, [self.load(self.pending, typ=I64), requests, self.flag, statuses])
            self.give_up_if(self.icmp_signed("!=", error, ir.Constant(I32, 0)), -1)
            return self.icmp_signed("==", self.load(self.flag, typ=I32), ir.Constant(I32, 0))

        with self.repeat_while(waiting):
            self.rest(looks)
        self.store(self.i64(0), self.pending)

    @contextmanager
    def peers(self) -> Iterator[Value]:
        """A loop over the other processes, starting after this one, so that not all send to the same one first."""
        with self.loop(1, self.size, name="distance") as distance:
            yield self.srem(self.plus(self.me, distance), self.i64(self.size))

    @contextmanager
    def message_pieces(self, most: Value) -> Iterator[tuple[Value, Value]]:
        """A loop over pieces of at most this many elements: the start of each piece, and its length."""
        with self.loop(0, self.of["count"], most, name="piece") as begin:
            yield begin, self.minimum(most, self.sub(self.of["count"], begin))

    def staged(self, process: Int) -> Value:
        """Where what comes from a process is put."""
        return self.at(self.address(Context.STAGING), self.mul(self.i64(process), self.part_bytes), I8)

    def _combined_parts(self, own: Value, target: Value, count: Value) -> None:
        """Combine the values received from the others with the part of this process."""
        sources = [
            self.select(self.icmp_signed("==", self.me, self.i64(r)), own, self.staged(r)) for r in range(self.size)
        ]
        self.combine_all(sources, [target], self.i64(0), count)

    @property
    def _part(self) -> Value:
        """The elements of a part of the staging memory."""
        return self.sdiv(self.part_bytes, self.i64(self.itemsize))

    @property
    def _message(self) -> Value:
        return self.i64(MESSAGE_BYTES // self.itemsize)

    def is_small(self, count: Value) -> Value:
        return self.icmp_signed("<", self.nbytes(count), self.i64(SMALL_BYTES))

    # --- collectives ----------------------------------------------------------------------------------------------------------

    def write_all_reduce(self) -> None:
        self._reduce_with_neighbours(self.neighbour_counts())

    def _reduce_with_neighbours(self, counts: Sequence[int]) -> None:
        """Through the memory of machines with one of these numbers of processes, if there are such; else by messages alone."""
        if not counts:
            self._reduce_between(self.of["x0"], self.of["y"], self.of["count"])
            return
        with self.if_else(self.has_neighbours(counts[0])) as (hierarchical, other):
            with hierarchical:
                self.write_hierarchical_all_reduce(counts[0])
            with other:
                self._reduce_with_neighbours(counts[1:])

    def _reduce_between(self, x: Value, y: Value, count: Value) -> None:
        """Combine `count` elements over all processes of the loop `peers`, by messages alone; `x` may be `y`."""
        with self.if_else(self.is_small(count)) as (whole, by_parts):
            with whole:
                self._reduce_whole(x, y, count)
            with by_parts:
                most = self.mul(self._part, self.i64(self.size))
                with self.loop(0, count, most, name="piece") as begin:
                    length = self.minimum(most, self.sub(count, begin))
                    self._reduce_parts(self.place(x, begin), self.place(y, begin), length)

    def _reduce_whole(self, x: Value, y: Value, count: Value) -> None:
        with self.peers() as peer:
            self.receive(self.staged(peer), self.nbytes(count), peer)
            self.send(x, self.nbytes(count), peer)
        self.wait()
        self._combined_parts(x, y, count)

    def _reduce_parts(self, x: Value, y: Value, count: Value) -> None:
        """Each process combines its part of a piece and sends it to the others."""
        size = self.i64(self.size)
        first, last = self.share(count, self.me, size)
        mine = self.nbytes(self.sub(last, first))
        with self.peers() as peer:
            low, high = self.share(count, peer, size)
            self.receive(self.staged(peer), mine, peer)
            self.send(self.place(x, low), self.nbytes(self.sub(high, low)), peer)
        self.wait()
        self._combined_parts(self.place(x, first), self.place(y, first), self.sub(last, first))
        with self.peers() as peer:
            low, high = self.share(count, peer, size)
            self.receive(self.place(y, low), self.nbytes(self.sub(high, low)), peer)
            self.send(self.place(y, first), mine, peer)
        self.wait()

    def write_hierarchical_all_reduce(self, count: int) -> None:
        """Piece by piece: neighbours combine a part each, exchange it with the machines, and copy what the others have."""
        with self.neighbour_pieces() as (begin, length):
            x, y = self.place(self.of["x0"], begin), self.place(self.of["y"], begin)
            with self.if_else(self.is_small(length)) as (whole, by_parts):
                with whole:
                    self.combine_with_neighbours(count, x, y, length, by_parts=False)
                    with self.between_machines(count):
                        self._reduce_whole(y, y, length)
                with by_parts:
                    first, last = self.combine_with_neighbours(count, x, y, length, by_parts=True)
                    with self.between_machines(count):
                        self._reduce_between(self.place(y, first), self.place(y, first), self.sub(last, first))
                    self.share_with_neighbours(count, y, length)

    @contextmanager
    def between_machines(self, count: int) -> Iterator[None]:
        """Inside, the processes are those with the same number on each machine, which has so many of them."""
        me, size, number_of = self.me, self.size, self.number_of
        inside = self.srem(me, self.i64(count))
        self.me, self.size = self.sdiv(me, self.i64(count)), size // count
        self.number_of = lambda machine: self.plus(self.mul(machine, self.i64(count)), inside)
        yield
        self.me, self.size, self.number_of = me, size, number_of

    def write_reduce_scatter(self) -> None:
        with self.message_pieces(self._part) as (begin, count):
            with self.peers() as peer:
                self.receive(self.staged(peer), self.nbytes(count), peer)
                self.send(self._of_part("x0", peer, begin), self.nbytes(count), peer)
            self.wait()
            self._combined_parts(self._of_part("x0", self.me, begin), self.place(self.of["y"], begin), count)

    def _of_part(self, name: str, part: Value, begin: Value) -> Value:
        """An element of the part for, or from, a process."""
        return self.place(self.of[name], self.plus(self.mul(part, self.of["count"]), begin))

    def write_all_to_all(self) -> None:
        with self.message_pieces(self._message) as (begin, count):
            with self.peers() as peer:
                self.receive(self._of_part("y", peer, begin), self.nbytes(count), peer)
                self.send(self._of_part("x0", peer, begin), self.nbytes(count), peer)
            own = self._of_part("x0", self.me, begin)
            self.copy(self._of_part("y", self.me, begin), own, self.nbytes(count))
            self.wait()

    def write_all_gather(self) -> None:
        with self.message_pieces(self._message) as (begin, count):
            own = self.place(self.of["x0"], begin)
            with self.peers() as peer:
                self.receive(self._of_part("y", peer, begin), self.nbytes(count), peer)
                self.send(own, self.nbytes(count), peer)
            self.copy(self._of_part("y", self.me, begin), own, self.nbytes(count))
            self.wait()

    def write_broadcast(self) -> None:
        root = self.of["detail"]
        with self.message_pieces(self._message) as (begin, count):
            own, target = self.place(self.of["x0"], begin), self.place(self.of["y"], begin)
            with self.if_else(self.icmp_signed("==", root, self.me)) as (here, elsewhere):
                with here:
                    with self.peers() as peer:
                        self.send(own, self.nbytes(count), peer)
                    self.copy(target, own, self.nbytes(count))
                with elsewhere:
                    self.receive(target, self.nbytes(count), root)
            self.wait()

    def write_shift(self) -> None:
        """To the process `detail` behind this one, from the one as far before it; zeros if there is none."""
        source, target = self.sub(self.me, self.of["detail"]), self.plus(self.me, self.of["detail"])
        with self.message_pieces(self._message) as (begin, count):
            own, y = self.place(self.of["x0"], begin), self.place(self.of["y"], begin)
            with self.if_then(self._is_process(target)):
                self.send(own, self.nbytes(count), target)
            with self.if_else(self._is_process(source)) as (there, outside):
                with there:
                    self.receive(y, self.nbytes(count), source)
                with outside:
                    self.fill_zero(y, self.nbytes(count))
            self.wait()

    def _is_process(self, number: Value) -> Value:
        return self.and_(
            self.icmp_signed(">=", number, self.i64(0)), self.icmp_signed("<", number, self.i64(self.size))
        )

    def write_axis_index(self) -> None:
        self.write(self.me, self.of["y"], 0)
