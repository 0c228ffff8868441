"""Emits a program as one LLVM module: a function for each kernel, and `main`, which every thread runs from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from llvmlite import ir

from ...graph.node import Node
from ...records import dataclass
from ..ir.conv_shape import described
from ..ir.kernel import Kernel
from ..ir.nest import ReadyNest, fitting_lanes, grouped_columns, ready_nest
from ..ir.program import Call, KernelProgram
from ..ir.segments import segments
from ..ir.signature import signature
from ..ir.storage import Slot
from ..thresholds import thresholds
from .calling_convention import EPILOGUE, argument_types
from .control_flow import ControlFlowEmitter
from .emit import LoopEmitter
from .ir_builder import I8, I64, PTR, Code, Value, new_module
from .target import CpuTarget, current_target
from .values import EpilogueRows, ErrorSites

BARRIER, TICKS = "team.barrier", "team.ticks"
PROGRAM = [PTR, I64, I64, PTR, I64]  # frame, tid, threads, team, whether this is the first run
FIRST = 2  # the entry of the status that says whether persistent values must be computed


@dataclass(frozen=True)
class EmittedModule:
    """The LLVM module of a program, and what is needed to link and run it."""

    module: ir.Module
    symbols: tuple[str, ...]  # library functions it calls
    sites: tuple[tuple[str, str, Any], ...]  # runtime errors: op, message, source line
    slots: frozenset[Slot]  # memory that it uses


def write(
    program: KernelProgram,
    target: CpuTarget | None = None,
    *,
    timestamps: bool = False,
    barriers: bool = True,
    entry: str = "main",
    place_of: Callable[[Slot], int] = attrgetter("offset"),
) -> EmittedModule:
    """Emit the program. With `timestamps`, every thread writes its clock before and after every call to an array of i64 [threads, calls, 2], whose
    address is an additional last entry of the frame, and waits for others only where the program does. Without `barriers`, only one thread can run it. `entry` is the name of its function. `place_of` gives
    the offsets of slots, if they are not where the plan says.
    """
    return _ModuleEmitter(program, target or current_target(), timestamps, barriers, place_of).written(entry)


def _group_columns(kernel: Kernel, nest: ReadyNest) -> int:
    """The columns of an anchor's result that one group of a convolution computes; all of them where a group is a single one."""
    columns, anchor = nest.outer[2].size, kernel.anchor
    if anchor is None or anchor.op.kernel != "convolution":
        return columns
    each = columns // described(anchor)[1].groups
    return each if each > 1 else columns


class _ModuleEmitter:
    def __init__(
        self,
        program: KernelProgram,
        target: CpuTarget,
        timestamps: bool,
        barriers: bool,
        place_of: Callable[[Slot], int],
    ) -> None:
        self.place_of = place_of
        self.top, self.target, self.barriers = program, target, barriers
        self.timestamps = timestamps
        self.module = new_module("weft")
        self.errors = ErrorSites()
        self.symbols: dict[str, None] = {}
        self.made: dict[Any, ir.Function] = {}  # functions by the signature of their kernels
        self.functions: dict[Kernel, tuple[ir.Function, list[Slot]]] = {}
        self.programs = 0
        self.slots: set[Slot] = set()
        self.program = program  # the one being emitted: the whole program, or a body of control flow

    def written(self, entry: str) -> EmittedModule:
        top = self._function(self.top)
        code = Code.begin(self.module, entry, [PTR, I64, I64, PTR])
        frame = code.arguments[0]
        first = code.read(code.read(frame, 1, PTR), FIRST, I64)  # persistent values must be computed (again)
        code.call(top, [*code.arguments, first])
        code.done()
        return EmittedModule(self.module, tuple(self.symbols), tuple(self.errors.sites), frozenset(self.slots))

    def _function(self, program: KernelProgram) -> ir.Function:
        """The function of a program: (frame, tid, threads, team, whether this is the first run) -> 1 if it must stop."""
        bodies = {k: [self._function(b) for b in parts] for k, parts in program.bodies.items()}
        self.program = program
        for kernel in dict.fromkeys(c.kernel for c in program.calls):
            if kernel.nest is not None:
                self.functions[kernel] = self._kernel(kernel)
        self.programs += 1
        return self._calls(program, bodies, f"program.{self.programs}")

    # --- kernels ----------------------------------------------------------------------------------------------------------

    def _kernel(self, kernel: Kernel) -> tuple[ir.Function, list[Slot]]:
        """The function of a kernel's loops, and the slots that its pointer arguments refer to."""
        nodes = self._nodes(kernel)
        slots = list(dict.fromkeys(self._slot(n) for n in nodes))
        lanes = self._lanes(kernel)
        nest = ready_nest(kernel, lanes)
        lanes = fitting_lanes(nest, lanes)
        number = {slot: i for i, slot in enumerate(slots)}
        group = _group_columns(kernel, nest) if kernel.rows else 0
        key = (group, lanes, len(slots), signature(nest, lambda n: number[self._slot(n)]))
        if key not in self.made:
            name = f"kernel.{len(self.made)}"
            self.made[key] = (
                self._epilogue(name, kernel.anchor, nest, slots, lanes, group)
                if kernel.rows
                else self._loops(name, nest, slots, lanes)
            )
        return self.made[key], slots

    def _loops(self, name: str, nest: ReadyNest, slots: list[Slot], lanes: int) -> ir.Function:
        code = Code.begin(self.module, name, [*[PTR] * len(slots), PTR, I64, I64], private=True)
        *pointers, status, tid, threads = code.arguments
        for argument in pointers:
            argument.add_attribute("noalias")
        by_slot = dict(zip(slots, pointers, strict=True))
        columns = grouped_columns(nest, lanes, self.target.registers, self.target.lanes(32))
        emitter = LoopEmitter(
            code, nest, lambda n: by_slot[self._slot(n)], status, self.errors, lanes, columns, segments(nest)
        )
        emitter.emit_parallel(tid, threads)
        return code.done()

    def _epilogue(
        self, name: str, anchor: Node | None, nest: ReadyNest, slots: list[Slot], lanes: int, group: int
    ) -> ir.Function:
        """The function of an epilogue. It is called for columns of one group of the anchor, up to its last column more often than not."""
        code = Code.begin(self.module, name, EPILOGUE.args, private=True)
        context, batch, row_begin, row_end, begin, end = code.arguments
        by_slot = {slot: code.read(context, i, PTR) for i, slot in enumerate(slots)}
        status = code.read(context, len(slots), PTR)
        epilogue = EpilogueRows(nest.outer[1], None if anchor is None else by_slot[self._slot(anchor)])
        emitter = LoopEmitter(
            code, nest, lambda n: by_slot[self._slot(n)], status, self.errors, lanes, epilogue=epilogue
        )
        emitter.at[nest.outer[0]] = batch

        def rows(emit_columns: Callable[[], None]) -> None:
            with code.loop(row_begin, row_end, name="row") as row:
                emitter.at[nest.outer[1]] = row
                emit_columns()

        tail = group % lanes
        if group > 2 * lanes:
            rows(lambda: emitter.row_part(begin, end, tail))
            return code.done()
        whole = code.icmp_signed("==", code.sub(end, begin), code.i64(group))
        with code.if_else(whole) as (then, other):  # narrow: specialize whole rows, whose length is constant
            with then:
                rows(lambda: emitter.row(begin, group))
            with other:
                rows(lambda: emitter.row_part(begin, end, 0))
        return code.done()

    def _lanes(self, kernel: Kernel) -> int:
        """The lanes of two vector registers of the widest element loaded or stored: two independent chains hide latency."""
        nodes = self._nodes(kernel)
        bits = max((n.dtype.bits for n in nodes if n.dtype.is_float), default=0) or max(
            (n.dtype.bits for n in nodes), default=32
        )
        return max(2, 2 * self.target.lanes(max(32, bits)))

    def _nodes(self, kernel: Kernel) -> list[Node]:
        own = [kernel.anchor] if kernel.anchor is not None and kernel.rows else []
        loaded = [s.node for b in kernel.bodies for s in b.steps if s.kind == "load"]
        stored = [s.node for p in kernel.nest.phases for s in p.stores] if kernel.nest is not None else []
        return list(dict.fromkeys([*own, *stored, *loaded]))

    def _slot(self, node: Node) -> Slot:
        return self.program.memory.slots[node]

    # --- programs ---------------------------------------------------------------------------------------------------------

    def _calls(self, program: KernelProgram, bodies: dict[Kernel, list[ir.Function]], name: str) -> ir.Function:
        """The function with the calls of a program. A long program is split into several, because LLVM takes superlinear time."""
        calls = list(enumerate(program.calls))
        if len(calls) <= thresholds.function_calls:
            return self._some_calls(program, bodies, name, calls)
        pieces = [
            calls[begin : begin + thresholds.function_calls]
            for begin in range(0, len(calls), thresholds.function_calls)
        ]
        parts = [self._some_calls(program, bodies, f"{name}.{i}", piece) for i, piece in enumerate(pieces)]
        code = Code.begin(self.module, name, PROGRAM, I64, private=True)
        for part in parts:
            self._stop_if(code, code.call(part, code.arguments))
        return code.done(code.i64(0))

    def _some_calls(
        self,
        program: KernelProgram,
        bodies: dict[Kernel, list[ir.Function]],
        name: str,
        calls: Sequence[tuple[int, Call]],
    ) -> ir.Function:
        code = Code.begin(self.module, name, PROGRAM, I64, private=True)
        frame, tid, threads, team, first = code.arguments
        kernels = dict.fromkeys(c.kernel for _, c in calls)
        contexts = {k: code.stack_array(PTR, len(self.functions[k][1]) + 1) for k in kernels if k.rows}
        for number, call in calls:
            if call.barrier:
                self._barrier(code, team, tid, threads)
            if call.once:
                with code.if_then(code.icmp_signed("!=", first, code.i64(0))), self._stamped(code, program, number):
                    self._call(code, frame, call, contexts, tid, threads)
            elif call.kind == "control":
                with self._stamped(code, program, number):
                    self._control(code, frame, call, bodies[call.kernel])
            else:
                with self._stamped(code, program, number):
                    self._call(code, frame, call, contexts, tid, threads)
        return code.done(code.i64(0))

    @contextmanager
    def _stamped(self, code: Code, program: KernelProgram, number: int) -> Iterator[None]:
        """Code emitted inside is a call whose begin and end every thread records, in its own part of the array."""
        if not self.timestamps or program is not self.top:
            yield
            return
        frame, tid = code.arguments[:2]
        ticks = self._external(TICKS, [], I64)
        of_thread = code.mul(tid, code.i64(2 * len(program.calls)))
        own = code.at(code.read(frame, self.top.frame_size, PTR), of_thread, I64)
        code.write(code.call(ticks, []), own, 2 * number)
        yield
        code.write(code.call(ticks, []), own, 2 * number + 1)

    def _call(
        self, code: Code, frame: Value, call: Call, contexts: dict[Kernel, Value], tid: Value, threads: Value
    ) -> None:
        if call.kind == "copy":
            source, target = self._pointer(code, frame, call.reads[0]), self._pointer(code, frame, call.writes[0])
            self._copy(code, target, source, call.reads[0].nbytes, tid, threads)
        elif call.kind == "loops":
            function, slots = self.functions[call.kernel]
            pointers = [self._pointer(code, frame, s) for s in slots]
            code.call(function, [*pointers, code.read(frame, 1, PTR), tid, threads])
        else:
            self._plan(code, frame, call, contexts, tid, threads)

    def _control(self, code: Code, frame: Value, call: Call, bodies: list[ir.Function]) -> None:
        _, tid, threads, team, _ = code.arguments

        def run(number: int, inner: Value, first: Value) -> None:
            self._stop_if(code, code.call(bodies[number], [inner, tid, threads, team, first]))

        ControlFlowEmitter(
            code, self.program, call, lambda slot: self._pointer(code, frame, slot), code.read(frame, 1, PTR), run,
            lambda: self._barrier(code, team, tid, threads),
            lambda target, source, size: self._copy(code, target, source, size, tid, threads),
        ).write()  # fmt: skip

    def _pointer(self, code: Code, frame: Value, slot: Slot) -> Value:
        offset = slot.offset
        if self.program is self.top:
            self.slots.add(slot)
            offset = self.place_of(slot)
        base = code.read(frame, slot.base, PTR)
        return base if not offset else code.at(base, offset, I8)

    def _barrier(self, code: Code, team: Value, tid: Value, threads: Value) -> None:
        if not self.barriers:
            return
        function = self._external(BARRIER, [PTR, I64, I64], I64)
        self._stop_if(code, code.call(function, [team, tid, threads]))

    def _stop_if(self, code: Code, stop: Value) -> None:
        with code.if_then(code.icmp_signed("!=", stop, code.i64(0)), likely=False):
            code.ret(code.i64(1))

    def _copy(self, code: Code, target: Value, source: Value, size: int, tid: Value, threads: Value) -> None:
        first, last = code.share(size, tid, threads)
        code.intrinsic(
            "memcpy", code.at(target, first, I8), code.at(source, first, I8), code.sub(last, first), ir.Constant(ir.IntType(1), 0),
            types=[PTR, PTR, I64], result=ir.VoidType(),
        )  # fmt: skip

    def _plan(
        self, code: Code, frame: Value, call: Call, contexts: dict[Kernel, Value], tid: Value, threads: Value
    ) -> None:
        phase = call.phase
        function = self._external(phase.symbol, argument_types(phase))
        self.symbols[phase.symbol] = None
        known: dict[str, Value] = {"tid": tid, "threads": threads}
        for name, slot in call.operands.items():
            if name in phase.arguments:
                known[name] = self._pointer(code, frame, slot)
        null = ir.Constant(PTR, None)
        known["epilogue"], known["context"] = null, null
        known["status"] = code.read(frame, 1, PTR)
        known |= self._sites(call, phase.arguments)
        known.setdefault("work", null)
        if call.kernel in contexts and "epilogue" in phase.arguments:
            known["epilogue"], slots = self.functions[call.kernel]
            known["context"] = contexts[call.kernel]
            for i, slot in enumerate(slots):
                code.write(self._pointer(code, frame, slot), known["context"], i)
            code.write(code.read(frame, 1, PTR), known["context"], len(slots))
        code.call(function, [ir.Constant(I64, a) if isinstance(a, int) else known[a] for a in phase.arguments])

    def _sites(self, call: Call, arguments: tuple[Any, ...]) -> dict[str, Value]:
        """The error sites of an indexed write, one an axis."""
        anchor = call.kernel.anchor
        found: dict[str, Value] = {
            a: ir.Constant(I64, 0) for a in arguments if isinstance(a, str) and a.startswith("site")
        }
        if anchor is None or not found:
            return {}
        for number, axis in enumerate(anchor.param("axes")):
            message = "index {value} is out of range for axis " + f"{axis} of size {anchor.shape[axis]}."
            site = self.errors.site(anchor.op.name, message, anchor.source)
            found[f"site{number}"] = ir.Constant(I64, site)
        return found

    def _external(self, name: str, arguments: list[ir.Type], result: ir.Type | None = None) -> ir.Function:
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(result or ir.VoidType(), arguments), name)
        return found
