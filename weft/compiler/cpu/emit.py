"""Emits the LLVM IR of one fused kernel from its loops.

Every step is emitted for single elements and for vectors of `lanes` elements along the vector loop, which runs over whole vectors
and then over the remaining elements. A step whose value is uniform over the lanes stays scalar.

Long sums of floats are computed in blocks: the few terms of a block are added sequentially, so are the few blocks of a group, and
groups are added with Kahan compensation. The error therefore does not grow with the number of terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ...records import dataclass
from ..ir.index import Loop
from ..ir.nest import ReadyNest, ReadyPhase, ReadyReduction
from ..ir.segments import LoopSegment
from ..ir.window_ops import SPREAD, TAP
from ..thresholds import thresholds
from . import scalars as scalar
from .combiners import better, combiner_of, product
from .ir_builder import I32, I64, Code, Int, Value, constant, lanes_of, vector
from .values import EpilogueRows, ErrorSites, VectorValues

TASKS, COLUMN_TASKS = (
    64,
    16,
)  # of a nest: enough for threads. Where columns are reduced, fewer: long rows are read in order


class LoopEmitter:
    """Emits the loops of a nest into a function."""

    def __init__(
        self,
        code: Code,
        nest: ReadyNest,
        pointer: Callable[[Node], Value],
        status: Value,
        errors: ErrorSites,
        lanes: int,
        columns: int = 1,
        segments: Sequence[LoopSegment] = (),
        epilogue: EpilogueRows | None = None,
    ) -> None:
        self.code, self.nest, self.pointer, self.status, self.errors = code, nest, pointer, status, errors
        self.lanes, self.columns = lanes, columns  # elements of a vector, and of all vectors that are reduced together
        self.segments = segments  # that the vector loop is cut in
        self.epilogue = epilogue
        self.vector, self.phases = nest.vector, nest.phases  # of the nest, or of the segment that is being emitted
        self.at: dict[Loop, Value] = {}  # the index of each enclosing loop
        self.rows: dict[Node, Value] = {}  # results of finished reductions

    # --- the loops ------------------------------------------------------------------------------------------------------

    def emit_parallel(self, tid: Value, threads: Value) -> None:
        """Emit the whole nest; each thread runs its share of the outer loops."""
        code, nest = self.code, self.nest
        if any(l.size == 0 for l in nest.outer):
            return
        across = [l for l in nest.outer if l is not nest.vector]
        rows = prod(l.size for l in across)
        length = nest.vector.size if nest.vector is not None else 1
        block = self._block(rows, length)
        blocks = -(-length // block)
        first, last = code.share(rows * blocks, tid, threads)
        with code.loop(first, last, name="task") as task:
            row = task if blocks == 1 else code.udiv(task, code.i64(blocks))
            self._set_loops(across, row)
            if blocks == 1:
                self._whole_row(length)
            else:
                self._one_block(code.urem(task, code.i64(blocks)), blocks, block, length)

    def _block(self, rows: int, length: int) -> int:
        """The elements of the vector loop of a task: all, or a part where there are few other loops to share out."""
        reduces = any(p.reductions and p.loops for p in self.nest.phases)
        tasks = COLUMN_TASKS if reduces else TASKS
        if rows >= tasks or self.nest.vector is None or self.segments:
            return max(length, 1)
        block = max(self.lanes, min(thresholds.task_elements, -(-length // (-(-tasks // rows) if reduces else tasks))))
        block = -(-block // self.lanes) * self.lanes
        return block if block < length else max(length, 1)

    def _one_block(self, number: Value, blocks: int, block: int, length: int) -> None:
        """Emit a block of the vector loop; the last one may be shorter."""
        code, rest = self.code, length - (blocks - 1) * block
        start = code.mul(number, code.i64(block))
        if rest == block:
            self.row(start, block)
            return
        with code.if_else(code.icmp_signed("<", number, code.i64(blocks - 1))) as (then, otherwise):
            with then:
                self.row(start, block)
            with otherwise:
                self.row((blocks - 1) * block, rest)

    def _set_loops(self, loops: Sequence[Loop], number: Value) -> None:
        """Set the indices of loops from the linear index of a row."""
        for loop in reversed(loops):
            self.at[loop] = self.code.urem(number, self.code.i64(loop.size)) if loop is not loops[0] else number
            number = self.code.udiv(number, self.code.i64(loop.size))

    def row(self, start: Int, count: int) -> None:
        """Emit all phases for this many elements of the outer vector loop, if there is one."""
        if self.nest.vector is None:
            self._phases([_Strip(1)])
            return
        for group in self._groups(start, count):
            self._phases(group)

    def _whole_row(self, length: int) -> None:
        """Emit all phases for the whole vector loop, segment by segment if it is cut."""
        if not self.segments:
            self.row(0, length)
            return
        for segment in self.segments:
            self.vector, self.phases = segment.vector, segment.phases
            self.row(0, segment.vector.size)

    def row_part(self, start: Value, stop: Value, tail: int) -> None:
        """Emit all phases for a range of the outer vector loop that is known when the program runs.

        Mostly `tail` elements remain after whole vectors: these are computed in narrower vectors, others one by one.
        """
        code = self.code
        middle = code.add(start, code.and_(code.sub(stop, start), code.i64(-self.lanes)))
        with code.loop(start, middle, self.lanes, name="v") as index:
            self._phases([_Strip(self.lanes, index)])
        if not tail:
            self._singles(middle, stop)
            return
        with code.if_else(code.icmp_signed("==", code.sub(stop, middle), code.i64(tail))) as (then, otherwise):
            with then:
                self.row(middle, tail)
            with otherwise:
                self._singles(middle, stop)

    def _singles(self, start: Value, stop: Value) -> None:
        with self.code.loop(start, stop, name="s") as index:
            self._phases([_Strip(1, index)])

    def _groups(self, start: Int, count: int) -> Iterator[list[_Strip]]:
        """Vectors that go through the loops of their phases side by side, so that memory is read in order; the caller emits the body."""
        code, side_by_side = self.code, max(1, self.columns // self.lanes)
        step = side_by_side * self.lanes
        whole = count // step * step
        for index in self._iterations(None, (step, 0, whole)):
            yield [_Strip(self.lanes, code.plus(start, index, k * self.lanes)) for k in range(side_by_side)]
        last = [(w, at) for w, first, end in strips(whole, count, self.lanes) for at in range(first, end, w)]
        for i in range(0, len(last), side_by_side):
            yield [_Strip(width, code.plus(start, at)) for width, at in last[i : i + side_by_side]]

    def _phases(self, group: Sequence[_Strip]) -> None:
        for phase in self.phases:
            if phase.reductions:
                self._reduce(phase, group)
            else:
                self._store_loops(phase, group)

    def _enter(self, strip: _Strip) -> int:
        """Switch to emitting for the elements of a strip; returns their number."""
        if strip.index is not None:
            assert self.vector is not None
            self.at[self.vector] = strip.index
        self.rows = strip.rows
        return strip.lanes

    def _nested(
        self,
        loops: Sequence[Loop],
        inside: Callable[[], None],
        cut: SumBlocks | None = None,
        sums: Sequence[_Accumulators] = (),
    ) -> None:
        if not loops:
            inside()
            return
        for index in self._iterations(loops[0], (1, 0, loops[0].size), cut, sums):
            self.at[loops[0]] = index
            self._nested(loops[1:], inside, cut, sums)

    def _iterations(
        self,
        loop: Loop | None,
        strip: tuple[int, int, int],
        cut: SumBlocks | None = None,
        sums: Sequence[_Accumulators] = (),
    ) -> Iterator[Value]:
        """A loop over a strip (step, first, last), block by block if it is the loop that is split; the caller emits the body."""
        code, (step, first, last) = self.code, strip
        if last == first:
            return
        if last - first == step:  # a single iteration needs no loop
            yield code.i64(first)
        elif cut is None or cut.loop is not loop:
            with code.loop(first, last, step, name="r") as index:
                yield index
        else:
            size = cut.count * step
            with code.loop(first, last, size, name="block") as begin:
                end = code.plus(begin, size)
                whole = (last - first) % size == 0
                with code.loop(begin, end if whole else code.minimum(end, last), step, name="r") as index:
                    yield index
                for totals in sums:
                    totals.end_block()

    def _store_loops(self, phase: ReadyPhase, group: Sequence[_Strip]) -> None:
        def across() -> None:
            for strip in group:
                self._stores(phase, self._enter(strip), self.vector)

        if phase.vector is None:
            self._nested(phase.loops, across)
            return
        self._enter(group[0])

        def inside() -> None:
            assert phase.vector is not None
            for width, first, last in strips(0, phase.vector.size, self.lanes):
                for index in self._iterations(None, (width, first, last)):
                    self.at[phase.vector] = index
                    self._stores(phase, width, phase.vector)

        self._nested(phase.loops[:-1], inside)

    def _stores(self, phase: ReadyPhase, lanes: int, along: Loop | None) -> None:
        values = VectorValues(self, phase, lanes, along)
        computed = [values.value(w.step) for w in phase.stores]  # all loads precede all stores
        for written, value in zip(phase.stores, computed, strict=True):
            values.store(written.node, written.position, value)

    # --- reductions -----------------------------------------------------------------------------------------------------

    def _reduce(self, phase: ReadyPhase, group: Sequence[_Strip]) -> None:
        along = phase.vector
        if along is None:
            self._reduce_columns(phase, group)
            return
        self._enter(group[0])
        pieces = strips(0, along.size, self.lanes)
        cut = sum_blocks(phase.loops, [*(l.size for l in phase.loops[:-1]), along.size // self.lanes or 1])
        by_width = {width: _Accumulators(self, phase, width, cut is not None) for width, _, _ in pieces}

        def inside() -> None:
            for width, first, last in pieces:
                totals = by_width[width]
                for index in self._iterations(along, (width, first, last), cut, [totals]):
                    self.at[along] = index
                    self._accumulate(phase, totals, width, along)
                if cut is not None and cut.loop is along and last - first == width:
                    totals.end_block()  # the enclosing loops may be long too

        self._nested(phase.loops[:-1], inside, cut, list(by_width.values()))
        for position, reduced in enumerate(phase.reductions):
            final = _Accumulator(self, reduced, 1)
            states = [self._reduce_lanes(final, many.every[position].read()) for many in by_width.values()]
            self.rows[reduced.node] = final.result(functools.reduce(final.combine, states, final.start()))

    def _reduce_lanes(self, final: _Accumulator, state: tuple[Value, ...]) -> tuple[Value, ...]:
        """All lanes of a state combined: the first half with the second, until one is left."""
        while lanes_of(state[0].type) > 1:
            first, second = zip(*map(self.code.halves, state), strict=True)
            state = final.combine(first, second)
        return state

    def _reduce_columns(self, phase: ReadyPhase, group: Sequence[_Strip]) -> None:
        """Every element of the strips has a reduction of its own, in the order of the loops."""
        cut = sum_blocks(phase.loops, [l.size for l in phase.loops])
        totals = [_Accumulators(self, phase, strip.lanes, cut is not None) for strip in group]

        def inside() -> None:
            for strip, total in zip(group, totals, strict=True):
                self._accumulate(phase, total, self._enter(strip), self.vector)

        self._nested(phase.loops, inside, cut, totals)
        for strip, found in zip(group, totals, strict=True):
            for total in found.every:
                strip.rows[total.reduced.node] = total.result(total.read())

    def _accumulate(self, phase: ReadyPhase, totals: _Accumulators, lanes: int, along: Loop | None) -> None:
        values = VectorValues(self, phase, lanes, along)
        for total in totals.every:
            total.add(values)


@dataclass
class _Strip:
    """A vector of the outer vector loop, or a single row: its elements, where they begin, and the results of their reductions."""

    lanes: int
    index: Value | None = None
    rows: dict[Node, Value] = field(default_factory=dict)


def strips(start: int, stop: int, lanes: int) -> list[tuple[int, int, int]]:
    """Split a range into vectors: (width, first, last), as many vectors of `lanes` as fit, then of half the width, and so on."""
    found = []
    while start < stop:
        count = (stop - start) // lanes
        if count:
            found.append((lanes, start, start + count * lanes))
            start += count * lanes
        lanes //= 2
    return found


@dataclass(frozen=True)
class SumBlocks:
    """The loop that is split to sum in blocks, and how many of its iterations make a block."""

    loop: Loop
    count: int


def sum_blocks(loops: Sequence[Loop], counts: Sequence[int]) -> SumBlocks | None:
    """The loop to split, innermost last, so that a block has at most `thresholds.sum_terms` terms; None if one block is enough."""
    terms = 1
    for loop, count in zip(reversed(loops), reversed(counts), strict=True):
        if terms * count > thresholds.sum_terms:
            return SumBlocks(loop, max(1, thresholds.sum_terms // terms))
        terms *= count
    return None


class _Accumulators:
    """The accumulators of a phase for vectors of one width, and the number of blocks finished so far."""

    def __init__(self, emitter: LoopEmitter, phase: ReadyPhase, lanes: int, in_blocks: bool) -> None:
        self.code = emitter.code
        self.every = [_Accumulator(emitter, reduced, lanes, in_blocks) for reduced in phase.reductions]
        self.done = self.code.variable(I64)
        self.code.store(self.code.i64(0), self.done)

    def end_block(self) -> None:
        code, sums = self.code, [total for total in self.every if total.before]
        if not sums:
            return
        for total in sums:
            total.end_block()
        done = code.add(code.load(self.done, typ=I64), code.i64(1))
        code.store(done, self.done)
        with code.if_then(
            code.icmp_unsigned("==", code.urem(done, code.i64(thresholds.sum_terms)), code.i64(0)), likely=False
        ):
            for total in sums:
                total.end_group()


class _Accumulator:
    """The state of a reduction: the value so far and, for argmax, its position.

    A sum in blocks also has the sum of the current group, the sum of all groups before it, and the rounding error of that sum.
    """

    def __init__(self, emitter: LoopEmitter, reduced: ReadyReduction, lanes: int, in_blocks: bool = False) -> None:
        self.emitter, self.reduced, self.lanes = emitter, reduced, lanes
        self.code = emitter.code
        self.op = reduced.node.op
        self.combiner = combiner_of(self.op)
        self.dtype: DType = reduced.dtype
        self.finds = reduced.finds
        self.registers = [self._variable(value) for value in self.start()]
        self.before: list[Value] = []
        if in_blocks and self.dtype.is_float and not self.finds and self.combiner.is_sum:
            self.before = [self._variable(*self.start()) for _ in range(3)]

    def _variable(self, value: Value) -> Value:
        slot = self.code.variable(value.type)
        self.code.store(value, slot)
        return slot

    def start(self) -> tuple[Value, ...]:
        neutral = self.combiner.identity_value(self.dtype, self.lanes)
        return (neutral, constant(vector(I64, self.lanes), -1)) if self.finds else (neutral,)

    def read(self) -> tuple[Value, ...]:
        """The final state."""
        if not self.before:
            return self._running()
        self.end_block()
        self.end_group()
        return (self._load(self.before[1]),)

    def _running(self) -> tuple[Value, ...]:
        return tuple(self.code.load(slot, typ=s.type) for slot, s in zip(self.registers, self.start(), strict=True))

    def _load(self, slot: Value) -> Value:
        return self.code.load(slot, typ=self.start()[0].type)

    def end_block(self) -> None:
        """Add the block to its group."""
        code, [zero], [block], group = self.code, self.start(), self.registers, self.before[0]
        code.store(code.fadd(self._load(group), self._load(block)), group)
        code.store(zero, block)

    def end_group(self) -> None:
        """Add the group to the total, less the total's rounding error; infinities have none."""
        code, [zero] = self.code, self.start()
        group, whole, excess = map(self._load, self.before)
        term = code.fsub(group, excess)
        total = code.fadd(whole, term)
        excess = code.fsub(code.fsub(total, whole), term)
        is_finite = code.fcmp_ordered("==", code.fsub(excess, excess), zero)
        for value, place in zip((zero, total, code.select(is_finite, excess, zero)), self.before, strict=True):
            code.store(value, place)

    def add(self, values: VectorValues) -> None:
        code = self.code
        new = self._selected_by_tap(values) if self.op is SPREAD else self._product(values)
        inside = values.conditions(self.reduced.conditions)
        if self.finds:
            position = values.spread(values.index(self.reduced.positions[0]))
            if inside is not None:
                position = code.select(inside, position, constant(position.type, -1))
            state = self.combine(self._running(), (new, position))
        else:
            if inside is not None:
                new = code.select(inside, new, self.combiner.identity_value(self.dtype, self.lanes))
            state = self.combine(self._running(), (new,))
        for slot, value in zip(self.registers, state, strict=True):
            code.store(value, slot)

    def _product(self, values: VectorValues) -> Value:
        new = values.value(self.reduced.steps[0])
        for step in self.reduced.steps[1:]:
            new = product(self.code, new, values.value(step), self.dtype)
        return values.spread(new)

    def _selected_by_tap(self, values: VectorValues) -> Value:
        """The value of a window, if its selected tap is the current one; the identity otherwise."""
        code = self.code
        tap, value = (values.spread(values.value(step)) for step in self.reduced.steps)
        here = code.trunc(values.spread(values.index(self.reduced.positions[0])), tap.type)
        return code.select(
            code.icmp_signed("==", tap, here), value, self.combiner.identity_value(self.dtype, self.lanes)
        )

    def combine(self, a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
        if self.finds:
            return better(self.code, a, b, self.dtype, self.combiner.prefers_greater)
        return (self.combiner.combine(self.code, a[0], b[0], self.dtype),)

    def result(self, state: tuple[Value, ...]) -> Value:
        if self.op is TAP:
            return self.code.trunc(state[1], vector(I32, self.lanes))
        return state[1] if self.finds else scalar.rounded(self.code, state[0], self.dtype)
