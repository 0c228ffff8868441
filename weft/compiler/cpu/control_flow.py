"""Lowers `call`, `cond`, `while_loop` and `scan` to native loops and branches around the functions of their bodies.

Every thread runs the loops itself, with its own frame of pointers to the body's inputs and outputs: a step of a scan only changes
addresses. Carried values are double buffered, unless steps update them in place; where the history of a carried value is an output, steps write into it directly. All
threads see the same condition, because a barrier separates its computation from its use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from ...graph.graph import Graph
from ...graph.node import ITEM, Node
from ...records import dataclass
from ..ir.program import FRAME_RESERVED, Call, KernelProgram
from ..ir.storage import Slot, nbytes
from ..planning.build import control_buffers
from .ir_builder import I8, I64, PTR, Code, Value

Pointer = Callable[[Slot], Value]
Run = Callable[[int, Value, Value], None]  # (number of the body, its frame, whether this is its first run)


@dataclass(frozen=True)
class _ScanParameters:
    """The parameters of a scan."""

    body: Graph
    carried: int
    sequences: int
    length: int
    reverse: bool
    history: bool

    @classmethod
    def of(cls, node: Node) -> _ScanParameters:
        return cls(*(node.param(name) for name in ("body", "carried", "sequences", "length", "reverse", "history")))


class ControlFlowEmitter:
    """Emits the code of one control-flow call into the function of its program."""

    def __init__(
        self,
        code: Code,
        program: KernelProgram,
        call: Call,
        pointer: Pointer,
        status: Value,
        run: Run,
        barrier: Callable[[], None],
        copy: Callable[[Value, Value, int], None],
    ) -> None:
        self.code, self.program, self.pointer, self.status = code, program, pointer, status
        self.run, self.barrier, self.copy = run, barrier, copy
        self.kernel = call.kernel
        assert call.kernel.anchor is not None
        self.node = call.kernel.anchor
        self.bodies = program.bodies[call.kernel]
        self.buffers = control_buffers(call.kernel, self.bodies)
        scratch = program.memory.scratch.get(call.kernel)
        self.scratch = pointer(scratch) if scratch is not None else ir.Constant(PTR, None)
        self.inputs = [pointer(program.viewed(v)) for v in call.kernel.views]
        by_number = {n.param("index"): n for n in call.kernel.outputs if n.op is ITEM}
        self.outputs = [
            pointer(program.memory.slots[by_number[i]]) if i in by_number else None
            for i in range(len(self.node.outputs))
        ]
        self.in_place = self.bodies[-1].updates  # carried values
        slots = [program.viewed(v) for v in call.kernel.views]
        self.is_there = [i in by_number and program.memory.slots[by_number[i]] == s for i, s in enumerate(slots)]
        self.frames = [code.stack_array(PTR, b.frame_size) for b in self.bodies]

    def write(self) -> None:
        LOWERINGS[self.node.op.name](self)

    def _buffer(self, name: str) -> Value:
        return self.code.at(self.scratch, self.buffers[name].offset, I8)

    def _body(self, number: int, inputs: Sequence[Value], outputs: Sequence[Value], first: Value) -> None:
        frame = self.frames[number]
        reserved = [self._buffer(f"arena{number}"), self.status, self._buffer(f"kept{number}")]
        for i, pointer in enumerate([*reserved, *inputs, *outputs]):
            self.code.write(pointer, frame, i)
        assert self.bodies[number].frame_size == FRAME_RESERVED + len(inputs) + len(outputs)
        self.run(number, frame, first)

    def _all_outputs(self) -> list[Value]:
        return [self._buffer(f"unread{i}") if o is None else o for i, o in enumerate(self.outputs)]

    def _call(self) -> None:
        self._body(0, self.inputs, self._all_outputs(), self.code.i64(1))

    def _cond(self) -> None:
        code = self.code
        holds = code.icmp_unsigned("!=", code.read(self.inputs[0], 0, I8), ir.Constant(I8, 0))
        outputs = self._all_outputs()
        with code.if_else(holds) as (then, other):
            with then:
                self._body(0, self.inputs[1:], outputs, code.i64(1))
            with other:
                self._body(1, self.inputs[1:], outputs, code.i64(1))

    def _while(self) -> None:
        code, carried = self.code, self.node.param("carried")
        now = [code.variable(PTR) for _ in range(carried)]
        for place, pointer in zip(now, self._beginnings(carried), strict=True):
            code.store(pointer, place)
        count = code.variable(I64)
        code.store(code.i64(0), count)
        head, body, after = (code.append_basic_block(f"while.{part}") for part in ("head", "body", "after"))
        code.branch(head)
        code.position_at_end(head)
        current = [code.load(p, typ=PTR) for p in now]
        step = code.load(count, typ=I64)
        first = code.zext(code.icmp_signed("==", step, code.i64(0)), I64)
        constants = self.inputs[carried:]
        self._body(0, [*current, *constants], [self._buffer("test")], first)
        self.barrier()
        go_on = code.icmp_unsigned("!=", code.read(self._buffer("test"), 0, I8), ir.Constant(I8, 0))
        code.cbranch(go_on, body, after)
        code.position_at_end(body)
        targets = self._alternating(step, carried)
        self._body(1, [*current, *constants], targets, first)
        self.barrier()
        for place, pointer in zip(now, targets, strict=True):
            code.store(pointer, place)
        code.store(code.plus(step, 1), count)
        code.branch(head)
        code.position_at_end(after)
        for i, place in enumerate(now):
            if self.outputs[i] is not None and i not in self.in_place:
                self.copy(self.outputs[i], code.load(place, typ=PTR), nbytes(self.node.inputs[i]))

    def _alternating(self, step: Value, carried: int) -> list[Value]:
        even = self.code.icmp_unsigned("==", self.code.and_(step, self.code.i64(1)), self.code.i64(0))
        return [
            self._only_place(i)
            if i in self.in_place
            else self.code.select(even, self._buffer(f"even{i}"), self._buffer(f"odd{i}"))
            for i in range(carried)
        ]

    def _only_place(self, i: int) -> Value:
        """Where a carried value is from the first step to the last, if steps update it in place."""
        output = self.outputs[i]
        return self._buffer(f"even{i}") if output is None else output

    def _beginnings(self, carried: int) -> list[Value]:
        """Where carried values are before the first step. Those that are updated in place are copied, unless they are there already."""
        copied = [i for i in range(carried) if i in self.in_place and not self.is_there[i]]
        for i in copied:
            self.copy(self._only_place(i), self.inputs[i], nbytes(self.node.inputs[i]))
        if copied:
            self.barrier()
        return [self._only_place(i) if i in self.in_place else self.inputs[i] for i in range(carried)]

    def _scan(self) -> None:
        code, scan = self.code, _ScanParameters.of(self.node)
        carried, length, reverse, history = scan.carried, scan.length, scan.reverse, scan.history
        sizes = [nbytes(i) for i in self.node.inputs[:carried]]
        stacked = len(scan.body.outputs) - carried
        before = self.outputs[carried + stacked :] if history else []
        if length == 0:
            for i in range(carried):
                if self.outputs[i] is not None and not self.is_there[i]:
                    self.copy(self.outputs[i], self.inputs[i], sizes[i])
            return
        begin = length - 1 if reverse else 0
        now = [code.variable(PTR) for _ in range(carried)]
        for i, (place, start) in enumerate(zip(now, self._beginnings(carried), strict=True)):
            if history and before[i] is not None:
                self.copy(code.at(before[i], begin * sizes[i], I8), start, sizes[i])
            code.store(start, place)
        with code.loop(0, length, name="step") as step:
            t = code.sub(code.i64(length - 1), step) if reverse else step
            self._scan_step(scan, step, t, now, sizes, before)

    def _scan_step(
        self,
        scan: _ScanParameters,
        step: Value,
        t: Value,
        now: list[Value],
        sizes: list[int],
        before: Sequence[Value | None],
    ) -> None:
        code, carried, length, history = self.code, scan.carried, scan.length, scan.history
        last = code.icmp_signed("==", step, code.i64(length - 1))
        following = code.plus(t, -1 if scan.reverse else 1)
        alternate = self._alternating(step, carried)
        targets = []
        for i in range(carried):
            middle = alternate[i]
            if history and before[i] is not None:
                middle = code.at(before[i], code.times(following, sizes[i]), I8)
            end = self.outputs[i] if self.outputs[i] is not None else alternate[i]
            targets.append(code.select(last, end, middle))
        each = []
        for i in range(scan.sequences):
            node = self.node.inputs[carried + i]
            each.append(code.at(self.inputs[carried + i], code.times(t, nbytes(node) // length), I8))
        results = []
        for i, output in enumerate(scan.body.outputs[carried:]):
            stack = self.outputs[carried + i]
            size = nbytes(output)
            results.append(
                self._buffer(f"unread{carried + i}") if stack is None else code.at(stack, code.times(t, size), I8)
            )
        current = [code.load(p, typ=PTR) for p in now]
        first = code.zext(code.icmp_signed("==", step, code.i64(0)), I64)
        self._body(0, [*current, *each, *self.inputs[carried + scan.sequences :]], [*targets, *results], first)
        self.barrier()
        for place, pointer in zip(now, targets, strict=True):
            code.store(pointer, place)


LOWERINGS: dict[str, Callable[[ControlFlowEmitter], None]] = {
    "call": ControlFlowEmitter._call,
    "cond": ControlFlowEmitter._cond,
    "while_loop": ControlFlowEmitter._while,
    "scan": ControlFlowEmitter._scan,
}
