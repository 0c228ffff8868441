"""From loops to LLVM IR: the code of one fused kernel.

Every step is written for single elements and for vectors of `lanes` elements along the vector loop: the loop runs in
vectors, then element by element over the rest. A step that is the same in all lanes stays a single number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from ...dtypes import DType
from ...graph.node import Node
from ..index import Loop
from ..nest import ReadyNest, ReadyPhase, Reduced
from . import scalar
from .build import I32, I64, Code, Int, Value, constant, vector
from .combine import better, combined, identity, product
from .values import Errors, Values

BLOCK = 4096  # elements of a vector loop that one thread takes at a time, when there is no other loop to share out


class Emitter:
    """Writes the loops of a nest into a function."""

    def __init__(
        self, code: Code, nest: ReadyNest, pointer: Callable[[Node], Value], status: Value, errors: Errors, lanes: int
    ) -> None:
        self.code, self.nest, self.pointer, self.status, self.errors, self.lanes = (
            code,
            nest,
            pointer,
            status,
            errors,
            lanes,
        )
        self.at: dict[Loop, Value] = {}  # the loops that are running
        self.rows: dict[Node, Value] = {}  # reductions that are done

    # --- the loops ------------------------------------------------------------------------------------------------------

    def shared_out(self, tid: Value, threads: Value) -> None:
        """All of the nest, each thread its share of the outer loops."""
        code, nest = self.code, self.nest
        if any(l.size == 0 for l in nest.outer):
            return
        across = [l for l in nest.outer if l is not nest.vector]
        rows = prod(l.size for l in across)
        length = nest.vector.size if nest.vector is not None else 1
        block = length if rows >= 64 or nest.vector is None else max(self.lanes, min(BLOCK, -(-length // 64)))
        block = -(-block // self.lanes) * self.lanes if block < length else max(length, 1)
        blocks = -(-length // block)
        first, last = code.share(rows * blocks, tid, threads)
        with code.loop(first, last, name="task") as task:
            row = task if blocks == 1 else code.udiv(task, code.i64(blocks))
            self._place(across, row)
            start: Int = 0
            stop: Int = length
            if blocks > 1:
                start = code.mul(code.urem(task, code.i64(blocks)), code.i64(block))
                stop = code.minimum(code.plus(start, block), length)
            self.row(start, stop)

    def _place(self, loops: Sequence[Loop], number: Value) -> None:
        """Set loops from the number of a row."""
        for loop in reversed(loops):
            self.at[loop] = self.code.urem(number, self.code.i64(loop.size)) if loop is not loops[0] else number
            number = self.code.udiv(number, self.code.i64(loop.size))

    def row(self, start: Int, stop: Int) -> None:
        """All phases, for the part of the outer vector loop that is given, if there is one."""
        if self.nest.vector is None:
            self._phases(1)
            return
        for lanes, index in self._strips(start, stop):
            self.at[self.nest.vector] = index
            self._phases(lanes)

    def _strips(self, start: Int, stop: Int) -> Iterator[tuple[int, Value]]:
        """A loop in vectors and then the rest, in shorter and shorter ones; the caller writes the body of each."""
        code = self.code
        if isinstance(start, int) and isinstance(stop, int):
            for width, first, last in strips(start, stop, self.lanes):
                if last - first == width:  # once is no loop
                    yield width, code.i64(first)
                else:
                    with code.loop(first, last, width, name="v") as index:
                        yield width, index
            return
        length = code.sub(code.i64(stop), code.i64(start))
        middle = code.add(code.i64(start), code.and_(length, code.i64(-self.lanes)))
        with code.loop(start, middle, self.lanes, name="v") as index:
            yield self.lanes, index
        with code.loop(middle, stop, 1, name="s") as index:
            yield 1, index

    def _phases(self, lanes: int) -> None:
        self.rows = {}
        for phase in self.nest.phases:
            if phase.reductions:
                self._reduce(phase, lanes)
            else:
                self._store_loops(phase, lanes)

    def _nested(self, loops: Sequence[Loop], inside: Callable[[], None]) -> None:
        if not loops:
            inside()
            return
        with self.code.loop(0, loops[0].size, name="r") as index:
            self.at[loops[0]] = index
            self._nested(loops[1:], inside)

    def _store_loops(self, phase: ReadyPhase, lanes: int) -> None:
        if phase.vector is None:
            self._nested(phase.loops, lambda: self._stores(phase, lanes, self.nest.vector))
            return

        def inside() -> None:
            assert phase.vector is not None
            for width, index in self._strips(0, phase.vector.size):
                self.at[phase.vector] = index
                self._stores(phase, width, phase.vector)

        self._nested(phase.loops[:-1], inside)

    def _stores(self, phase: ReadyPhase, lanes: int, along: Loop | None) -> None:
        values = Values(self, phase, lanes, along)
        computed = [values.value(w.step) for w in phase.stores]  # all are read before any is written
        for written, value in zip(phase.stores, computed, strict=True):
            values.store(written.node, written.position, value)

    # --- reductions -----------------------------------------------------------------------------------------------------

    def _reduce(self, phase: ReadyPhase, lanes: int) -> None:
        along = phase.vector
        if along is None:
            totals = [_Total(self, r, lanes) for r in phase.reductions]
            self._nested(phase.loops, lambda: self._accumulate(phase, totals, lanes, self.nest.vector))
            for reduced, total in zip(phase.reductions, totals, strict=True):
                self.rows[reduced.node] = total.result(total.read())
            return
        by_width = {w: [_Total(self, r, w) for r in phase.reductions] for w, _, _ in strips(0, along.size, self.lanes)}

        def inside() -> None:
            for width, index in self._strips(0, along.size):
                self.at[along] = index
                self._accumulate(phase, by_width[width], width, along)

        self._nested(phase.loops[:-1], inside)
        for position, reduced in enumerate(phase.reductions):
            final = _Total(self, reduced, 1)
            states = [final.start()]
            for width, many in by_width.items():
                found = many[position].read()
                states += [self._lane(found, k) for k in range(width)]
            while len(states) > 1:  # as a tree, always the same one
                pairs = zip(states[::2], [*states[1::2], None], strict=False)
                states = [a if b is None else final.combine(a, b) for a, b in pairs]
            self.rows[reduced.node] = final.result(states[0])

    def _lane(self, state: tuple[Value, ...], lane: int) -> tuple[Value, ...]:
        return tuple(self.code.lane(v, lane) for v in state)

    def _accumulate(self, phase: ReadyPhase, totals: list[_Total], lanes: int, along: Loop | None) -> None:
        values = Values(self, phase, lanes, along)
        for total in totals:
            total.add(values)


def strips(start: int, stop: int, lanes: int) -> list[tuple[int, int, int]]:
    """A range cut in vectors: (width, first, last) with as many vectors of `lanes` as fit, then half as wide ones, ..."""
    found = []
    while start < stop:
        count = (stop - start) // lanes
        if count:
            found.append((lanes, start, start + count * lanes))
            start += count * lanes
        lanes //= 2
    return found


class _Total:
    """The running state of a reduction: the value so far, and for argmax where it was found."""

    def __init__(self, emitter: Emitter, reduced: Reduced, lanes: int) -> None:
        self.emitter, self.reduced, self.lanes = emitter, reduced, lanes
        self.code = emitter.code
        self.kind = reduced.node.op.name
        self.dtype: DType = reduced.dtype
        self.finds = reduced.finds
        self.rooms = []
        for value in self.start():
            room = self.code.variable(value.type)
            self.code.store(value, room)
            self.rooms.append(room)

    def start(self) -> tuple[Value, ...]:
        neutral = identity(self.kind, self.dtype, self.lanes)
        return (neutral, constant(vector(I64, self.lanes), -1)) if self.finds else (neutral,)

    def read(self) -> tuple[Value, ...]:
        return tuple(self.code.load(room, typ=s.type) for room, s in zip(self.rooms, self.start(), strict=True))

    def add(self, values: Values) -> None:
        code = self.code
        new = self._won(values) if self.kind == "window_spread" else self._product(values)
        inside = values.conditions(self.reduced.conditions)
        if self.finds:
            position = values.spread(values.index(self.reduced.positions[0]))
            if inside is not None:
                position = code.select(inside, position, constant(position.type, -1))
            state = self.combine(self.read(), (new, position))
        else:
            if inside is not None:
                new = code.select(inside, new, identity(self.kind, self.dtype, self.lanes))
            state = self.combine(self.read(), (new,))
        for room, value in zip(self.rooms, state, strict=True):
            code.store(value, room)

    def _product(self, values: Values) -> Value:
        new = values.value(self.reduced.steps[0])
        for step in self.reduced.steps[1:]:
            new = product(self.code, new, values.value(step), self.dtype)
        return values.spread(new)

    def _won(self, values: Values) -> Value:
        """A window's value, if the tap that won in it is the one that is looked at."""
        code = self.code
        tap, value = (values.spread(values.value(step)) for step in self.reduced.steps)
        here = code.trunc(values.spread(values.index(self.reduced.positions[0])), tap.type)
        return code.select(code.icmp_signed("==", tap, here), value, identity(self.kind, self.dtype, self.lanes))

    def combine(self, a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
        if self.finds:
            return better(self.code, a, b, self.dtype, self.kind != "argmin")
        return (combined(self.code, self.kind, a[0], b[0], self.dtype),)

    def result(self, state: tuple[Value, ...]) -> Value:
        if self.kind == "window_tap":
            return self.code.trunc(state[1], vector(I32, self.lanes))
        return state[1] if self.finds else scalar.rounded(self.code, state[0], self.dtype)
