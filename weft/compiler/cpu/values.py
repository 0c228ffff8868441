"""The steps of a phase as LLVM values, for one element or for a vector along the vector loop.

A value that is uniform over the lanes stays scalar until it is combined with one that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from llvmlite import ir

from ...dtypes import int64
from ...graph.node import Node
from ...records import dataclass
from ..ir.index import IndexExpr, Inside, Loop, Quotient, Read, Remainder, Term
from ..ir.loops import Step
from ..ir.nest import ReadyPhase
from ..ir.window_ops import IN_RANGE, SPREAD, TAP
from ..thresholds import thresholds
from . import scalars as scalar
from .combiners import add, better, combiner_of, philox
from .ir_builder import I1, I32, I64, Code, Int, Value, constant, lanes_of, vector
from .target import LINE


@dataclass(frozen=True)
class EpilogueRows:
    """The rows of an epilogue, which runs for some columns of each, and where the anchor has just stored its results."""

    loop: Loop
    results: Value | None


class LoopContext(Protocol):
    """What steps need of the enclosing loops."""

    code: Code
    at: dict[Loop, Value]  # the index of each enclosing loop
    rows: dict[Node, Value]  # results of finished reductions
    pointer: Callable[[Node], Value]
    status: Value
    errors: ErrorSites
    epilogue: EpilogueRows | None


class ErrorSites:
    """The runtime errors of a program; each place in the code that can raise one has a number."""

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
_AHEAD, _EPILOGUE_AHEAD = 8, 4  # rows


class VectorValues:
    """The values of a phase's steps at one iteration, each emitted once, on demand."""

    def __init__(self, emitter: LoopContext, phase: ReadyPhase, lanes: int, along: Loop | None) -> None:
        self.emitter, self.phase, self.lanes, self.along = emitter, phase, lanes, along
        self.code = emitter.code
        self.done: list[Value] = []
        for step in phase.steps:  # in topological order
            self.done.append(self._compute(step))

    def value(self, number: int) -> Value:
        return self.done[number]

    def spread(self, value: Value) -> Value:
        """The value as a vector: a scalar is broadcast."""
        return value if self.lanes == 1 or lanes_of(value.type) == self.lanes else self.code.splat(value, self.lanes)

    def _compute(self, step: Step) -> Value:
        code, node = self.code, step.node
        args = [self.done[a] for a in step.args]
        if step.kind == "load":
            return self._load(node, step.indices[0])
        if step.kind == "row":
            return self.emitter.rows[node]
        if step.kind == "const":
            return scalar.number(node.dtype, node.param("value"))
        if step.kind == "iota":
            return scalar.convert(code, self.index(step.indices[0]), int64, node.dtype)
        if step.kind == "op":
            args = self._same_lanes(args)
            return scalar.emit(code, node, args, lambda bad, value: self._flag_op(node, bad, value))
        if step.kind == "same":
            return args[0] if args else scalar.number(node.dtype, 0)  # an empty operand, which is never used
        if step.kind == "guard":
            return self._guarded(step, args)
        if step.kind == "choose":
            return self._chosen(step, args)
        if step.kind == "bits":
            return philox(code, self.index(step.indices[0]), args[0], args[1])
        assert step.kind == "window", step.kind
        return self._window(step, args)

    def _same_lanes(self, args: list[Value]) -> list[Value]:
        lanes = max(lanes_of(a.type) for a in args)
        return [a if lanes_of(a.type) == lanes else self.code.splat(a, lanes) for a in args]

    def _guarded(self, step: Step, args: list[Value]) -> Value:
        filler = scalar.number(step.node.dtype, step.node.param("value"))
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
        return self.code.select(holds, a, b)  # a scalar condition may select whole vectors

    def _window(self, step: Step, args: list[Value]) -> Value:
        code, dtype, op = self.code, step.node.inputs[0].dtype, step.node.op
        if op is SPREAD:
            return self._spread_back(step, args)
        combiner = combiner_of(op)
        state: tuple[Value, ...] | None = None
        for arg, conditions, position in zip(args, step.conditions, step.indices, strict=True):
            holds = self.conditions(conditions)
            arg = self.spread(arg)
            if combiner.returns_position:
                where = self.spread(self.index(position))
                if holds is not None:
                    where = self._select(holds, where, constant(where.type, -1))
                new: tuple[Value, ...] = (arg, where)
                state = new if state is None else better(code, state, new, dtype, combiner.prefers_greater)
                continue
            if holds is not None:
                arg = self._select(holds, arg, combiner.identity_value(dtype, self.lanes))
            state = (arg,) if state is None else (combiner.combine(code, state[0], arg, dtype),)
        assert state is not None
        if op is TAP:
            return code.trunc(state[1], vector(I32, self.lanes))
        return state[1] if combiner.returns_position else scalar.rounded(code, state[0], dtype)

    def _spread_back(self, step: Step, args: list[Value]) -> Value:
        """The sum over the windows in which this element was selected."""
        code, dtype = self.code, step.node.dtype
        zero = scalar.number(dtype, 0, self.lanes)
        total = zero
        for number, conditions in enumerate(step.conditions):
            tap, g = (self.spread(a) for a in args[2 * number : 2 * number + 2])
            won = code.icmp_signed("==", tap, constant(tap.type, number))
            holds = self.conditions(conditions)
            if holds is not None:
                won = code.and_(*self._same_lanes([won, holds]))
            total = add(code, total, code.select(won, g, zero), dtype)
        return scalar.rounded(code, total, dtype)

    def conditions(self, conditions: Sequence[Inside]) -> Value | None:
        """Whether all conditions hold, as a scalar or a mask; None if there are none."""
        result = None
        for c in conditions:
            holds = self._inside(self.index(c.inner), c)
            if result is None:
                result = holds
            else:
                a, b = self._same_lanes([result, holds])
                result = self.code.and_(a, b)
        return result

    def _inside(self, inner: Value, term: Inside) -> Value:
        code = self.code
        top = (term.size - 1) * term.step
        holds = code.icmp_unsigned("<=", inner, constant(inner.type, top))  # unsigned: negative values are large
        if term.step > 1:
            even = code.icmp_unsigned("==", code.urem(inner, constant(inner.type, term.step)), constant(inner.type, 0))
            holds = code.and_(holds, even)
        return holds

    # --- places ---------------------------------------------------------------------------------------------------------

    def index(self, index: IndexExpr) -> Value:
        """The index, a vector if it is not uniform over the lanes."""
        step = 0 if self.along is None or self.lanes == 1 else index.coefficient(self.along)
        if step is None:
            return self._varying(index)
        base = self._base(index)
        if step == 0:
            return base
        return self.code.add(self.code.splat(base, self.lanes), self._counting(step))

    def _counting(self, step: int) -> Value:
        return ir.Constant(ir.VectorType(I64, self.lanes), [ir.Constant(I64, step * k) for k in range(self.lanes)])

    def _base(self, index: IndexExpr) -> Value:
        """The index in the first lane."""
        total: list[Int] = [index.offset]
        for term, c in index.parts:
            total.append(self.code.times(self._term(term), c))
        return self.code.plus(*total)

    def _varying(self, index: IndexExpr) -> Value:
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
        """An index read from a tensor, checked and with negative values wrapped."""
        code, node = self.code, term.node
        value = scalar.convert(code, self.done[self.phase.number[(node, term.place)]], node.dtype, int64)
        zero, size = constant(value.type, 0), constant(value.type, term.size)
        place = value
        axis = term.gather.param("axes")[term.gather.inputs[1:].index(node)]
        if term.gather.param("wraps"):
            place = code.select(code.icmp_signed("<", value, zero), code.add(value, size), value)
        bad = code.icmp_unsigned(">=", place, size)
        message = "index {value} is out of range for axis " + f"{axis} of size {term.size}."
        self._flag(bad, value, self.emitter.errors.site("gather", message, term.gather.source))
        return code.select(bad, zero, place)

    def _flag_op(self, node: Node, bad: Value, value: Value) -> None:
        name = node.op.name
        if node.op is IN_RANGE:
            axis, size = node.param("axis"), node.param("size")
            message = "index {value} is out of range for axis " + f"{axis} of size {size}."
            self._flag(bad, value, self.emitter.errors.site("scatter", message, node.source))
            return
        site = self.emitter.errors.site(_PUBLIC.get(name, name), _MESSAGES[name], node.source)
        self._flag(bad, constant(vector(I64, lanes_of(bad.type)), 0), site)

    def _flag(self, bad: Value, value: Value, site: int) -> None:
        """Record the error site and the offending value where the mask is set; the program continues with safe values."""
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

    def _load(self, node: Node, position: IndexExpr) -> Value:
        code, dtype = self.code, node.dtype
        element, pointer = scalar.storage_type(dtype), self.emitter.pointer(node)
        step = 0 if self.along is None or self.lanes == 1 else position.coefficient(self.along)
        if step is None:
            where = self._varying(position)
            raw = code.gather_lanes([code.read(pointer, code.lane(where, k), element) for k in range(self.lanes)])
        elif step == 0:
            raw = code.read(pointer, self._base(position), element)
        elif step == 1:
            self._prefetch(node, position)
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

    def _prefetch(self, node: Node, position: IndexExpr, write: bool = False) -> None:
        """Prefetch a later row where rows are walked down, column by column: hardware prefetchers do not follow such large strides."""
        inner, ahead = self._rows_walked(node)
        if inner is None or inner is self.along:
            return
        stride, size = position.coefficient(inner), node.dtype.itemsize
        if stride is None or abs(stride) * size < thresholds.far_rows:
            return
        start, element = self.code.plus(self._base(position), stride * ahead), scalar.storage_type(node.dtype)
        for at in range(0, self.lanes, LINE // size):
            self.code.prefetch(self.emitter.pointer(node), self.code.plus(start, at), element, write=write)

    def _rows_walked(self, node: Node) -> tuple[Loop | None, int]:
        """The loop over rows, of which only some columns are read or written at a time, and how many rows ahead to prefetch."""
        if self.phase.reductions and self.phase.loops:
            return self.phase.loops[-1], _AHEAD
        epilogue = self.emitter.epilogue
        if epilogue is None or self.emitter.pointer(node) is epilogue.results:
            return None, 0
        return epilogue.loop, _EPILOGUE_AHEAD

    def store(self, node: Node, position: IndexExpr, value: Value) -> None:
        code = self.code
        raw = scalar.to_storage(code, value, node.dtype)
        pointer = self.emitter.pointer(node)
        step = 0 if self.along is None or self.lanes == 1 else position.coefficient(self.along)
        if step == 0:
            code.write(raw, pointer, self._base(position))
            return
        raw = self.spread(raw)
        if step == 1:
            self._prefetch(node, position, write=True)
            code.write(raw, pointer, self._base(position))
            return
        base = None if step is None else self._base(position)
        where = self._varying(position) if step is None else None
        for k in range(self.lanes):
            place = code.lane(where, k) if step is None else code.plus(base, step * k)
            code.write(code.lane(raw, k), pointer, place)
