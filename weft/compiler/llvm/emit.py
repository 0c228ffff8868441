"""From loops to LLVM IR: the code of one fused kernel.

Every step is written for single elements and for vectors of `lanes` elements along the vector loop: the loop runs in
vectors, then element by element over the rest. A step that is the same in all lanes stays a single number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from llvmlite import ir

from ...dtypes import DType, int64, uint32
from ...graph.node import Node
from ..index import Index, Inside, Loop, Quotient, Read, Remainder, Term, loops_of
from ..loops import Step
from ..nest import ReadyNest, ReadyPhase, Reduced
from . import scalar
from .build import I1, I32, I64, Code, Int, Value, constant, lanes_of, vector

BLOCK = 4096  # elements of a vector loop that one thread takes at a time, when there is no other loop to share out


class Errors:
    """What can go wrong while a program runs; each place in the code has a number."""

    def __init__(self) -> None:
        self.sites: list[tuple[str, str, Any]] = []  # op, message with {value}, source

    def site(self, op: str, message: str, source: Any) -> int:
        entry = (op, message, source)
        if entry not in self.sites:
            self.sites.append(entry)
        return self.sites.index(entry) + 1


_MESSAGES = {
    "floor_divide": "an integer was divided by zero. Guard the divisor with weft.where().",
    "remainder": "an integer was divided by zero. Guard the divisor with weft.where().",
    "pow": "an integer cannot be raised to a negative power. Convert the base with astype().",
    "shl": "a shift by a negative number has no meaning.",
    "shr": "a shift by a negative number has no meaning.",
}
_PUBLIC = {"shl": "bitwise_left_shift", "shr": "bitwise_right_shift"}


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
        self.dtype: DType = reduced.node.inputs[0].dtype
        self.finds = self.kind in ("argmax", "argmin", "window_argmax")
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
        new = values.value(self.reduced.steps[0])
        for step in self.reduced.steps[1:]:
            new = _product(code, new, values.value(step), self.dtype)
        new = values.spread(new)
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

    def combine(self, a: tuple[Value, ...], b: tuple[Value, ...]) -> tuple[Value, ...]:
        if self.finds:
            return better(self.code, a, b, self.dtype, self.kind != "argmin")
        return (combined(self.code, self.kind, a[0], b[0], self.dtype),)

    def result(self, state: tuple[Value, ...]) -> Value:
        return state[1] if self.finds else scalar.rounded(self.code, state[0], self.dtype)


def _product(code: Code, a: Value, b: Value, dtype: DType) -> Value:
    if lanes_of(a.type) != lanes_of(b.type):
        lanes = max(lanes_of(a.type), lanes_of(b.type))
        a, b = (v if lanes_of(v.type) == lanes else code.splat(v, lanes) for v in (a, b))
    return code.fmul(a, b) if dtype.is_float else code.mul(a, b)


def identity(kind: str, dtype: DType, lanes: int) -> Value:
    """What a reduction of nothing gives."""
    if kind == "prod":
        return scalar.number(dtype, 1, lanes)
    if kind not in ("max", "min", "argmax", "argmin", "window_max", "window_argmax"):
        return scalar.number(dtype, 0, lanes)
    greatest = kind in ("min", "argmin")
    if dtype.is_float:
        return scalar.number(dtype, "inf" if greatest else "-inf", lanes)
    if dtype.kind == "int":
        return scalar.number(dtype, (1 << (dtype.bits - 1)) - 1 if greatest else -(1 << (dtype.bits - 1)), lanes)
    return scalar.number(dtype, (1 << dtype.bits) - 1 if greatest else 0, lanes)


def combined(code: Code, kind: str, a: Value, b: Value, dtype: DType) -> Value:
    if kind == "prod":
        return code.fmul(a, b) if dtype.is_float else code.mul(a, b)
    if kind in ("max", "window_max"):
        return scalar.extreme(code, a, b, dtype, True)
    if kind == "min":
        return scalar.extreme(code, a, b, dtype, False)
    return code.fadd(a, b) if dtype.is_float else code.add(a, b)


def better(code: Code, a: tuple[Value, ...], b: tuple[Value, ...], dtype: DType, greater: bool) -> tuple[Value, ...]:
    """Of two (value, position) the one to keep: the greater (or less), nan before all, the first of equals; -1 is nobody."""
    (x, i), (y, j) = a, b
    sign = ">" if greater else "<"
    if dtype.is_float:
        nan_x, nan_y = code.fcmp_unordered("uno", x, x), code.fcmp_unordered("uno", y, y)
        wins = code.or_(code.and_(nan_y, code.not_(nan_x)), code.and_(code.fcmp_ordered(sign, y, x), code.not_(nan_x)))
        equal = code.or_(code.fcmp_ordered("==", x, y), code.and_(nan_x, nan_y))
    else:
        compare = code.icmp_signed if dtype.kind == "int" else code.icmp_unsigned
        wins, equal = compare(sign, y, x), compare("==", x, y)
    earlier = code.icmp_unsigned("<", j, i)  # -1 counts as the greatest
    nobody = constant(j.type, -1)
    take = code.or_(wins, code.and_(equal, earlier))
    take = code.or_(take, code.icmp_signed("==", i, nobody))
    take = code.and_(take, code.icmp_signed("!=", j, nobody))
    return code.select(take, y, x), code.select(take, j, i)


class Values:
    """The steps of a phase at one place: computed when they are wanted, each once."""

    def __init__(self, emitter: Emitter, phase: ReadyPhase, lanes: int, along: Loop | None) -> None:
        self.emitter, self.phase, self.lanes, self.along = emitter, phase, lanes, along
        self.code = emitter.code
        self.done: list[Value] = []
        for step in phase.steps:  # in order: each after its arguments
            self.done.append(self._compute(step))

    def value(self, number: int) -> Value:
        return self.done[number]

    def spread(self, value: Value) -> Value:
        """A number that is the same in all lanes as a vector."""
        return value if self.lanes == 1 or lanes_of(value.type) == self.lanes else self.code.splat(value, self.lanes)

    def _compute(self, step: Step) -> Value:
        code, node = self.code, step.node
        args = [self.done[a] for a in step.args]
        if step.kind == "load":
            return self._load(node, step.indices[0])
        if step.kind == "row":
            return self.emitter.rows[node]
        if step.kind == "const":
            return scalar.number(node.dtype, node.params[0])
        if step.kind == "iota":
            return scalar.convert(code, self.index(step.indices[0]), int64, node.dtype)
        if step.kind == "op":
            args = self._together(args)
            return scalar.emit(code, node, args, lambda bad, value: self._flag_op(node, bad, value))
        if step.kind == "same":
            return args[0] if args else scalar.number(node.dtype, 0)  # of nothing; it is never used
        if step.kind == "guard":
            return self._guarded(step, args)
        if step.kind == "choose":
            return self._chosen(step, args)
        if step.kind == "bits":
            return philox(code, self.index(step.indices[0]), args[0], args[1])
        assert step.kind == "window", step.kind
        return self._window(step, args)

    def _together(self, args: list[Value]) -> list[Value]:
        lanes = max(lanes_of(a.type) for a in args)
        return [a if lanes_of(a.type) == lanes else self.code.splat(a, lanes) for a in args]

    def _guarded(self, step: Step, args: list[Value]) -> Value:
        filler = scalar.number(step.node.dtype, step.node.params[1])
        if not args:
            return filler
        holds = self.conditions(step.conditions[0])
        return args[0] if holds is None else self._select(holds, args[0], filler)

    def _chosen(self, step: Step, args: list[Value]) -> Value:
        result = args[-1]
        for value, conditions in zip(reversed(args[:-1]), reversed(step.conditions[:-1]), strict=True):
            holds = self.conditions(conditions)
            result = value if holds is None else self._select(holds, value, result)
        return result

    def _select(self, holds: Value, a: Value, b: Value) -> Value:
        lanes = max(lanes_of(v.type) for v in (holds, a, b))
        a, b = (v if lanes_of(v.type) == lanes else self.code.splat(v, lanes) for v in (a, b))
        return self.code.select(holds, a, b)  # a single condition may choose whole vectors

    def _window(self, step: Step, args: list[Value]) -> Value:
        code, dtype, kind = self.code, step.node.inputs[0].dtype, step.node.op.name
        if kind == "window_spread":
            return self._spread_back(step, args)
        state: tuple[Value, ...] | None = None
        for arg, conditions, position in zip(args, step.conditions, step.indices, strict=True):
            holds = self.conditions(conditions)
            arg = self.spread(arg)
            if kind in ("window_argmax", "window_tap"):
                where = self.spread(self.index(position))
                if holds is not None:
                    where = self._select(holds, where, constant(where.type, -1))
                new: tuple[Value, ...] = (arg, where)
                state = new if state is None else better(code, state, new, dtype, True)
                continue
            if holds is not None:
                arg = self._select(holds, arg, identity(kind, dtype, self.lanes))
            state = (arg,) if state is None else (combined(code, kind, state[0], arg, dtype),)
        assert state is not None
        if kind == "window_tap":
            return code.trunc(state[1], vector(I32, self.lanes))
        return state[1] if kind == "window_argmax" else scalar.rounded(code, state[0], dtype)

    def _spread_back(self, step: Step, args: list[Value]) -> Value:
        """The sum over the windows that this element won."""
        code, dtype = self.code, step.node.dtype
        zero = scalar.number(dtype, 0, self.lanes)
        total = zero
        for number, conditions in enumerate(step.conditions):
            tap, g = (self.spread(a) for a in args[2 * number : 2 * number + 2])
            won = code.icmp_signed("==", tap, constant(tap.type, number))
            holds = self.conditions(conditions)
            if holds is not None:
                won = code.and_(*self._together([won, holds]))
            total = combined(code, "sum", total, code.select(won, g, zero), dtype)
        return scalar.rounded(code, total, dtype)

    def conditions(self, conditions: Sequence[Inside]) -> Value | None:
        """Whether all conditions hold, in all lanes alike or in each; None if there are none."""
        result = None
        for c in conditions:
            holds = self._inside(self.index(c.inner), c)
            if result is None:
                result = holds
            else:
                a, b = self._together([result, holds])
                result = self.code.and_(a, b)
        return result

    def _inside(self, inner: Value, term: Inside) -> Value:
        code = self.code
        top = (term.size - 1) * term.step
        holds = code.icmp_unsigned("<=", inner, constant(inner.type, top))  # below zero is very large
        if term.step > 1:
            even = code.icmp_unsigned("==", code.urem(inner, constant(inner.type, term.step)), constant(inner.type, 0))
            holds = code.and_(holds, even)
        return holds

    # --- places ---------------------------------------------------------------------------------------------------------

    def index(self, index: Index) -> Value:
        """The index as a number, or as a vector of them if it is not the same in all lanes."""
        step = 0 if self.along is None or self.lanes == 1 else index.coefficient(self.along)
        if step is None:
            return self._varying(index)
        base = self._base(index)
        if step == 0:
            return base
        return self.code.add(self.code.splat(base, self.lanes), self._counting(step))

    def _counting(self, step: int) -> Value:
        return ir.Constant(ir.VectorType(I64, self.lanes), [ir.Constant(I64, step * k) for k in range(self.lanes)])

    def _base(self, index: Index) -> Value:
        """The index in the first lane."""
        total: list[Int] = [index.offset]
        for term, c in index.parts:
            total.append(self.code.times(self._term(term), c))
        return self.code.plus(*total)

    def _varying(self, index: Index) -> Value:
        code = self.code
        total: Value = constant(vector(I64, self.lanes), index.offset)
        for term, c in index.parts:
            if term is self.along:
                value = code.add(code.splat(self.emitter.at[self.along], self.lanes), self._counting(1))
            else:
                value = self._term(term)
            value = self.spread(value)
            total = code.add(total, value if c == 1 else code.mul(value, constant(value.type, c)))
        return total

    def _term(self, term: Term) -> Value:
        code = self.code
        if isinstance(term, Loop):
            return self.emitter.at[term]
        if isinstance(term, Read):
            return self._read(term)
        inner = self.index(term.inner)
        if isinstance(term, Quotient):
            return code.udiv(inner, constant(inner.type, term.by))
        if isinstance(term, Remainder):
            return code.urem(inner, constant(inner.type, term.size))
        holds = self._inside(inner, term)
        quotient = inner if term.step == 1 else code.udiv(inner, constant(inner.type, term.step))
        return code.select(holds, quotient, constant(inner.type, 0))

    def _read(self, term: Read) -> Value:
        """An index that comes from a tensor: checked, and counted from the front."""
        code, node = self.code, term.node
        value = scalar.convert(code, self.done[self.phase.number[(node, term.place)]], node.dtype, int64)
        zero, size = constant(value.type, 0), constant(value.type, term.size)
        place = value
        axes, wraps = term.gather.params
        axis = axes[term.gather.inputs[1:].index(node)]
        if wraps:
            place = code.select(code.icmp_signed("<", value, zero), code.add(value, size), value)
        bad = code.icmp_unsigned(">=", place, size)
        message = "index {value} is out of range for axis " + f"{axis} of size {term.size}."
        self._flag(bad, value, self.emitter.errors.site("gather", message, term.gather.source))
        return code.select(bad, zero, place)

    def _flag_op(self, node: Node, bad: Value, value: Value) -> None:
        name = node.op.name
        if name == "in_range":
            size, axis = node.params
            message = "index {value} is out of range for axis " + f"{axis} of size {size}."
            self._flag(bad, value, self.emitter.errors.site("scatter", message, node.source))
            return
        site = self.emitter.errors.site(_PUBLIC.get(name, name), _MESSAGES[name], node.source)
        self._flag(bad, constant(vector(I64, lanes_of(bad.type)), 0), site)

    def _flag(self, bad: Value, value: Value, site: int) -> None:
        """Where something is wrong, remember which site and which value; the run goes on with safe numbers."""
        code = self.code
        lanes = lanes_of(bad.type)
        some = bad if lanes == 1 else code.intrinsic("vector.reduce.or", bad, types=[bad.type], result=I1)
        with code.if_then(some, likely=False):
            worst = value
            if lanes > 1:
                worst = code.lane(value, lanes - 1)
                for lane in reversed(range(lanes - 1)):
                    worst = code.select(code.lane(bad, lane), code.lane(value, lane), worst)
            code.write(ir.Constant(I64, site), self.emitter.status, 0)
            code.write(worst, self.emitter.status, 1)

    # --- memory ---------------------------------------------------------------------------------------------------------

    def _load(self, node: Node, position: Index) -> Value:
        code, dtype = self.code, node.dtype
        element, pointer = scalar.storage_type(dtype), self.emitter.pointer(node)
        step = 0 if self.along is None or self.lanes == 1 else position.coefficient(self.along)
        if step is None:
            where = self._varying(position)
            raw = code.gather_lanes([code.read(pointer, code.lane(where, k), element) for k in range(self.lanes)])
        elif step == 0:
            raw = code.read(pointer, self._base(position), element)
        elif step == 1:
            raw = code.read(pointer, self._base(position), vector(element, self.lanes))
        elif step == -1:
            raw = code.read(pointer, code.plus(self._base(position), 1 - self.lanes), vector(element, self.lanes))
            order = ir.Constant(
                ir.VectorType(I32, self.lanes), [ir.Constant(I32, k) for k in reversed(range(self.lanes))]
            )
            raw = code.shuffle_vector(raw, raw, order)
        else:
            base = self._base(position)
            raw = code.gather_lanes([code.read(pointer, code.plus(base, step * k), element) for k in range(self.lanes)])
        return scalar.from_storage(code, raw, dtype)

    def store(self, node: Node, position: Index, value: Value) -> None:
        code = self.code
        raw = scalar.to_storage(code, value, node.dtype)
        pointer = self.emitter.pointer(node)
        step = 0 if self.along is None or self.lanes == 1 else position.coefficient(self.along)
        if step == 0:
            code.write(raw, pointer, self._base(position))
            return
        raw = self.spread(raw)
        if step == 1:
            code.write(raw, pointer, self._base(position))
            return
        base = None if step is None else self._base(position)
        where = self._varying(position) if step is None else None
        for k in range(self.lanes):
            place = code.lane(where, k) if step is None else code.plus(base, step * k)
            code.write(code.lane(raw, k), pointer, place)


def philox(code: Code, position: Value, key: Value, offset: Value) -> Value:
    """Random bits: word i % 4 of block offset + i // 4 (Philox 4x32-10)."""
    lanes = lanes_of(position.type)
    wide, narrow = vector(I64, lanes), vector(I32, lanes)
    low = constant(wide, 0xFFFFFFFF)
    shift = constant(wide, 32)
    key, offset = (code.splat(v, lanes) if lanes > 1 else v for v in (key, offset))
    counter = code.add(code.lshr(position, constant(wide, 2)), offset)
    words = [code.and_(counter, low), code.lshr(counter, shift), constant(wide, 0), constant(wide, 0)]
    keys = [code.and_(key, low), code.lshr(key, shift)]
    for _ in range(10):
        left, right = code.mul(words[0], constant(wide, 0xD2511F53)), code.mul(words[2], constant(wide, 0xCD9E8D57))
        words = [
            code.xor(code.xor(code.lshr(right, shift), words[1]), keys[0]), code.and_(right, low),
            code.xor(code.xor(code.lshr(left, shift), words[3]), keys[1]), code.and_(left, low),
        ]  # fmt: skip
        keys = [
            code.and_(code.add(keys[0], constant(wide, 0x9E3779B9)), low),
            code.and_(code.add(keys[1], constant(wide, 0xBB67AE85)), low),
        ]
    which = code.and_(position, constant(wide, 3))
    result = words[0]
    for k in (1, 2, 3):
        result = code.select(code.icmp_unsigned("==", which, constant(wide, k)), words[k], result)
    return code.trunc(result, narrow)


__all__ = ["Emitter", "Errors", "loops_of", "uint32"]
