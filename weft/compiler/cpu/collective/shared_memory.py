"""Collectives through memory that the processes of one machine share.

Every thread of a process (a lane) works on its share of a tensor, piece by piece, together with the threads of the same number in the
other processes. One exchange: copy a piece to a slot of the shared memory, publish its number, wait until all others have published
theirs, read their slots. Pieces are so small that slots stay in the caches. Two slots in turn are enough: who has published
exchange n has read everything of exchange n - 1.

Sums follow one tree over the numbers of the processes, (0 + 1) + (2 + 3), whatever the size: so all processes have the same bits, and
the bits do not depend on how the work is shared.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from llvmlite import ir

from ....dtypes import DType, as_dtype
from ....graph.node import OPS, Node
from ...ir.plan import Plan
from ..ir_builder import I8, I64, Int, Value, new_module
from ..library import library
from .layout import LINE, TAG_BITS, Context
from .phases import phase
from .writer import TYPES, CollectiveCode

TWO_PHASES = 1 << 14  # bytes from which on each of more than two processes sums a part, and then copies the other parts


@library("collective")
def make(symbol: str) -> ir.Module:
    """collective.NAME.DTYPE.COMBINE.SIZE: arguments as in phases.ARGUMENTS; `count` elements of the result, or of one part of it.

    `detail`: the root of a broadcast, or how far a shift goes.
    """
    _, name, dtype, combine, size = symbol.split(".")
    module = new_module(symbol)
    code = ExchangeCode.begin(module, symbol, TYPES)
    code.prepare(as_dtype(dtype), combine, int(size))
    getattr(code, f"write_{name}")()
    code.finish()
    code.done()
    return module


def plan(node: Node, threads: int) -> Plan:
    """The plan of a collective."""
    return Plan(node.op.name, (phase(node.op, node.params, node.type),), 0, 0)


def plan_bucket(node: Node, threads: int, wanted: frozenset[int]) -> Plan:
    """The plan of the sums of several tensors: one after the other, since there is no latency that one message would save."""
    params = (*node.get_params("axis", "mesh"), "sum", "summed")
    phases = [phase(OPS["all_reduce"], params, node.outputs[i], i) for i in sorted(wanted)]
    return Plan(node.op.name, tuple(phases), 0, 0)


class ExchangeCode(CollectiveCode):
    """The code of one collective."""

    def prepare(self, dtype: DType, combine: str, size: int) -> None:
        super().prepare(dtype, combine, size)
        self.lanes = self.word(Context.LANES)
        self.slot_bytes = self.word(Context.SLOT_BYTES)
        self.own_count = self.at(self.address(Context.SEQUENCES), self.mul(self.of["tid"], self.i64(LINE)), I8)
        self.sequence = self.variable(I64)
        self.store(self.read(self.own_count, 0, I64), self.sequence)

    def finish(self) -> None:
        self.write(self.load(self.sequence, typ=I64), self.own_count, 0)
        super().finish()

    # --- exchanges ------------------------------------------------------------------------------------------------------------

    def _lane_of(self, process: Int) -> Value:
        """The number of this thread's lane among all lanes of all processes."""
        return self.plus(self.mul(self.i64(process), self.lanes), self.of["tid"])

    def slot(self, process: Int) -> Value:
        """The slot of a process in the coming exchange."""
        parity = self.and_(self.load(self.sequence, typ=I64), self.i64(1))
        number = self.plus(self.mul(self._lane_of(process), self.i64(2)), parity)
        return self.at(self.address(Context.STAGING), self.mul(number, self.slot_bytes), I8)

    def _published(self, process: Int) -> Value:
        return self.at(self.address(Context.PUBLISHED), self.mul(self._lane_of(process), self.i64(LINE)), I8)

    def publish(self) -> Value:
        """Say that this process's slot is filled, and wait for the others; the number of the exchange before it was counted up."""
        number = self.load(self.sequence, typ=I64)
        word = self.or_(self.shl(self.plus(number, 1), self.i64(TAG_BITS)), self.of["tag"])
        self.store_atomic(word, self.typed(self._published(self.me)), "release", 8)
        with self.loop(0, self.size, name="peer") as peer:
            self._await(peer, word)
        return number

    def _await(self, peer: Value, word: Value) -> None:
        """Wait until a peer has published as much. One that is at this exchange must be in the same collective."""
        place, wanted = self._published(peer), self.lshr(word, self.i64(TAG_BITS))

        def behind() -> Value:
            seen = self.lshr(self.load_atomic(place, "acquire", 8, typ=I64), self.i64(TAG_BITS))
            return self.icmp_unsigned("<", seen, wanted)

        self.wait_while(behind)
        seen = self.load_atomic(place, "acquire", 8, typ=I64)
        same = self.icmp_unsigned("==", self.lshr(seen, self.i64(TAG_BITS)), wanted)
        self.give_up_if(self.and_(same, self.icmp_unsigned("!=", seen, word)), peer)

    def next(self) -> None:
        self.store(self.plus(self.load(self.sequence, typ=I64), 1), self.sequence)

    def pieces(self, parts: int = 1) -> AbstractContextManager[tuple[Value, Value]]:
        """A loop over the pieces of this thread's share, so small that `parts` of them fit in a slot: where one begins, and its length."""
        return _Pieces(self, parts)

    # --- collectives ----------------------------------------------------------------------------------------------------------

    def write_all_reduce(self) -> None:
        with self.pieces() as (begin, count):
            self.copy(self.slot(self.me), self.place(self.of["x0"], begin), self.nbytes(count))
            self.publish()
            target = self.place(self.of["y"], begin)
            slots = [self.slot(r) for r in range(self.size)]
            if self.size == 2:
                self.combine_all(slots, [target], self.i64(0), count)
                self.next()
            else:
                small = self.icmp_signed("<", self.nbytes(count), self.i64(TWO_PHASES))
                with self.if_else(small) as (whole, by_parts):
                    with whole:
                        self.combine_all(slots, [target], self.i64(0), count)
                        self.next()
                    with by_parts:
                        self._by_parts(slots, target, count)

    def _by_parts(self, slots: list[Value], target: Value, count: Value) -> None:
        """Each process combines its part and publishes it; then it copies those of the others."""
        first, last = self.share(count, self.me, self.i64(self.size))
        self.next()
        self.combine_all(slots, [target, self.slot(self.me)], first, last)
        self.publish()
        with self.loop(0, self.size, name="part") as peer, self.if_then(self.icmp_signed("!=", peer, self.me)):
            begin, end = self.share(count, peer, self.i64(self.size))
            source = self.place(self.slot(peer), begin)
            self.copy(self.place(target, begin), source, self.nbytes(self.sub(end, begin)))
        self.next()

    def write_reduce_scatter(self) -> None:
        with self.pieces(self.size) as (begin, count):
            self._fill_parts(begin, count)
            mine = self.mul(self.me, count)
            slots = [self.place(self.slot(r), mine) for r in range(self.size)]
            self.combine_all(slots, [self.place(self.of["y"], begin)], self.i64(0), count)
            self.next()

    def write_all_to_all(self) -> None:
        with self.pieces(self.size) as (begin, count):
            self._fill_parts(begin, count)
            with self.loop(0, self.size, name="source") as peer:
                source = self.place(self.slot(peer), self.mul(self.me, count))
                target = self.place(self.of["y"], self.plus(self.mul(peer, self.of["count"]), begin))
                self.copy(target, source, self.nbytes(count))
            self.next()

    def _fill_parts(self, begin: Value, count: Value) -> None:
        """Publish the same piece of every part: there is one part for each process."""
        slot = self.slot(self.me)
        with self.loop(0, self.size, name="target") as peer:
            source = self.place(self.of["x0"], self.plus(self.mul(peer, self.of["count"]), begin))
            self.copy(self.place(slot, self.mul(peer, count)), source, self.nbytes(count))
        self.publish()

    def write_all_gather(self) -> None:
        with self.pieces() as (begin, count):
            self.copy(self.slot(self.me), self.place(self.of["x0"], begin), self.nbytes(count))
            self.publish()
            with self.loop(0, self.size, name="source") as peer:
                target = self.place(self.of["y"], self.plus(self.mul(peer, self.of["count"]), begin))
                self.copy(target, self.slot(peer), self.nbytes(count))
            self.next()

    def write_broadcast(self) -> None:
        root = self.of["detail"]
        with self.pieces() as (begin, count):
            with self.if_then(self.icmp_signed("==", root, self.me)):
                self.copy(self.slot(self.me), self.place(self.of["x0"], begin), self.nbytes(count))
            self.publish()
            self.copy(self.place(self.of["y"], begin), self.slot(root), self.nbytes(count))
            self.next()

    def write_shift(self) -> None:
        """From the process `detail` before this one; zeros if there is none."""
        source = self.sub(self.me, self.of["detail"])
        inside = self.and_(
            self.icmp_signed(">=", source, self.i64(0)), self.icmp_signed("<", source, self.i64(self.size))
        )
        with self.pieces() as (begin, count):
            self.copy(self.slot(self.me), self.place(self.of["x0"], begin), self.nbytes(count))
            self.publish()
            target = self.place(self.of["y"], begin)
            with self.if_else(inside) as (there, outside):
                with there:
                    self.copy(target, self.slot(source), self.nbytes(count))
                with outside:
                    self.fill_zero(target, self.nbytes(count))
            self.next()

    def write_axis_index(self) -> None:
        with self.if_then(self.icmp_signed("==", self.of["tid"], self.i64(0))):
            self.write(self.me, self.of["y"], 0)


class _Pieces:
    """See `ExchangeCode.pieces`. The pieces have the same lengths in all processes."""

    def __init__(self, code: ExchangeCode, parts: int) -> None:
        self.code, self.parts = code, parts
        self.loop: AbstractContextManager[Any] = nullcontext()

    def __enter__(self) -> tuple[Value, Value]:
        code = self.code
        first, last = code.share(code.of["count"], code.of["tid"], code.of["threads"])
        most = code.sdiv(code.slot_bytes, code.i64(self.parts * code.itemsize))
        self.loop = code.loop(first, last, most, name="piece")
        begin = self.loop.__enter__()
        return begin, code.minimum(most, code.sub(last, begin))

    def __exit__(self, *error: Any) -> None:
        self.loop.__exit__(*error)
