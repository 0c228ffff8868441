"""Code that runs a compiled program on several POSIX threads, started and joined by each call.

The team of a call is three counters on the caller's stack: nothing is shared between calls, and there is nothing to set up or to free.
If the system starts fewer threads than planned, the program runs on those: no result depends on their number.
"""

from __future__ import annotations

from llvmlite import ir

from ..compiler.cpu.ir_builder import I32, I64, PTR, Code, Value
from ..compiler.cpu.module import BARRIER

SYMBOLS = frozenset({"pthread_create", "pthread_join", "sched_yield"})
_LINE = 16  # words of a cache line
_GO, _ARRIVED, _PHASE, _WORDS = 0, _LINE, 2 * _LINE, 3 * _LINE
_SPINS = 2000  # looks at a counter before the core is given to others
_WORD = I32.as_pointer()  # llvmlite cannot express an atomic store to an untyped pointer


class _CounterCode(Code):
    """Code with atomic counters."""

    def counter(self, team: Value, index: int) -> Value:
        return self.inttoptr(self.ptrtoint(self.at(team, index, I32), I64), _WORD)

    def look(self, team: Value, index: int) -> Value:
        return self.load_atomic(self.counter(team, index), "acquire", 4, typ=I32)

    def set(self, value: Value, team: Value, index: int) -> None:
        self.store_atomic(value, self.counter(team, index), "release", 4)

    def wait_while(self, team: Value, index: int, value: Value) -> None:
        """Wait until a counter has another value."""
        spins = self.variable(I32)
        self.store(ir.Constant(I32, 0), spins)
        with self.repeat_while(lambda: self.icmp_unsigned("==", self.look(team, index), value)):
            count = self.load(spins, typ=I32)
            with self.if_else(self.icmp_signed("<", count, ir.Constant(I32, _SPINS))) as (early, late):
                with early:
                    self.store(self.add(count, ir.Constant(I32, 1)), spins)
                with late:
                    self.call(external(self.module, "sched_yield", [], I32), [])


def external(module: ir.Module, name: str, arguments: list[ir.Type], result: ir.Type) -> ir.Function:
    """A function that is defined elsewhere."""
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments), name)


def write_barrier(module: ir.Module) -> None:
    """i64 barrier(team, tid, threads): returns 0 when all threads have come."""
    code = _CounterCode.begin(module, BARRIER, [PTR, I64, I64], I64)
    team, _, threads = code.arguments
    phase = code.look(team, _PHASE)
    before = code.atomic_rmw("add", code.counter(team, _ARRIVED), ir.Constant(I32, 1), "acq_rel")
    last = code.icmp_signed("==", code.plus(code.zext(before, I64), 1), threads)
    with code.if_else(last) as (release, wait):
        with release:
            code.set(ir.Constant(I32, 0), team, _ARRIVED)
            code.set(code.add(phase, ir.Constant(I32, 1)), team, _PHASE)
        with wait:
            code.wait_while(team, _PHASE, phase)
    code.done(code.i64(0))


def write_worker(module: ir.Module, program: ir.Function) -> ir.Function:
    """ptr worker(job): a job is the frame, the team and the thread's number."""
    code = _CounterCode.begin(module, "worker", [PTR], PTR, private=True)
    frame, team, tid = (code.read(code.arguments[0], i, PTR) for i in range(3))
    code.wait_while(team, _GO, ir.Constant(I32, 0))
    code.call(program, [frame, code.ptrtoint(tid, I64), code.zext(code.look(team, _GO), I64), team])
    return code.done(ir.Constant(PTR, None))


def write_team(module: ir.Module, program: ir.Function, threads: int) -> ir.Function:
    """void team(frame): run the program on so many threads, this one included."""
    worker = write_worker(module, program)
    code = _CounterCode.begin(module, "team", [PTR], private=True)
    [frame] = code.arguments
    team = code.stack_array(I32, _WORDS)
    for index in (_GO, _ARRIVED, _PHASE):
        code.set(ir.Constant(I32, 0), team, index)
    handles, jobs = code.stack_array(PTR, threads), code.stack_array(PTR, 3 * threads)
    started = code.variable(I64)
    code.store(code.i64(0), started)
    create = external(module, "pthread_create", [PTR, PTR, PTR, PTR], I32)
    for _ in range(threads - 1):
        count = code.load(started, typ=I64)
        job = code.at(jobs, code.times(count, 3), PTR)
        for i, value in enumerate([frame, team, code.inttoptr(code.plus(count, 1), PTR)]):
            code.write(value, job, i)
        function = code.inttoptr(code.ptrtoint(worker, I64), PTR)
        failed = code.call(create, [code.at(handles, count, PTR), ir.Constant(PTR, None), function, job])
        is_there = code.icmp_signed("==", failed, ir.Constant(I32, 0))
        code.store(code.plus(count, code.zext(is_there, I64)), started)
    count = code.load(started, typ=I64)
    code.set(code.trunc(code.plus(count, 1), I32), team, _GO)
    code.call(program, [frame, code.i64(0), code.plus(count, 1), team])
    join = external(module, "pthread_join", [PTR, PTR], I32)
    with code.loop(0, count, name="worker") as i:
        code.call(join, [code.read(handles, i, PTR), ir.Constant(PTR, None)])
    return code.done()
