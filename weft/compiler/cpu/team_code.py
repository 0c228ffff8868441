"""The native code of teams: how threads get a job, wait for each other at a barrier, and fall asleep without work.

Written once for all teams and programs; a team is the few words of memory that `Word` lays out. All of them are read and
written atomically, in the weakest order that is right.
"""

from __future__ import annotations

from llvmlite import ir

from .ir_builder import I8, I32, I64, PTR, VOID, Code, Int, Value, new_module
from .team_layout import OF_LIBC, OF_PYTHON, StopReason, Word

PROGRAM = ir.FunctionType(VOID, [PTR, I64, I64, PTR])  # frame, tid, threads, team
BARRIER = ir.FunctionType(I64, [PTR, I64, I64])  # team, tid, threads

# llvmlite cannot express an atomic store to, or a call of, an untyped pointer.
_STATE, _PROGRAM = I64.as_pointer(), PROGRAM.as_pointer()

# Of what the code is linked with.
_TYPES = {
    "PyLong_AsVoidPtr": ir.FunctionType(PTR, [PTR]),
    "PyLong_FromLong": ir.FunctionType(PTR, [I64]),
    "PyErr_Occurred": ir.FunctionType(PTR, []),
    "PyErr_CheckSignals": ir.FunctionType(I32, []),
    "PyEval_SaveThread": ir.FunctionType(PTR, []),
    "PyEval_RestoreThread": ir.FunctionType(VOID, [PTR]),
    "sched_yield": ir.FunctionType(I32, []),
    "usleep": ir.FunctionType(I32, [I32]),
    "pthread_mutex_lock": ir.FunctionType(I32, [PTR]),
    "pthread_mutex_unlock": ir.FunctionType(I32, [PTR]),
    "pthread_cond_wait": ir.FunctionType(I32, [PTR, PTR]),
    "pthread_cond_broadcast": ir.FunctionType(I32, [PTR]),
}


def native_module(arch: str) -> ir.Module:
    """The code of all teams, for a kind of CPU."""
    module = new_module("team")
    for name in (*OF_PYTHON, *OF_LIBC):
        ir.Function(module, _TYPES[name], name)
    _write_ticks(module)
    _write_pause(module, arch)
    # In an order in which each calls only those before it.
    for write in (_write_listen, _write_barrier, _write_publish, _write_launch, _write_turn, _write_enter):
        write(module)
    for write in (_write_dismiss, _write_sleep, _write_work, _write_address):
        write(module)
    return module


class _TeamCode(Code):
    """Code whose first argument is the shared words, and words for threads that share them."""

    def word(self, index: int) -> Value:
        return self.at(self.arguments[0], index, I64)

    def look(self, index: int, ordering: str = "monotonic") -> Value:
        return self.load_atomic(self.word(index), ordering, 8, typ=I64)

    def set(self, value: Int, index: int, ordering: str = "monotonic") -> None:
        self.store_atomic(self.i64(value), self.word(index), ordering, 8)

    def count(self, index: int, step: int, ordering: str) -> Value:
        """Add to a word; its value before."""
        return self.atomic_rmw("add", self.word(index), self.i64(step), ordering)

    def has(self, value: Value, bit: int) -> Value:
        return self.icmp_unsigned("!=", self.and_(value, self.i64(bit)), self.i64(0))

    def ask(self, name: str, *arguments: Value) -> Value:
        return self.call(self.module.globals[name], arguments)

    def wait_while(self, index: int, value: Value, *, sleep: bool = False) -> None:
        """Wait until a word has another value: spin, then let others run, then, if allowed to, sleep."""
        start = self.ask("team.ticks")

        def unchanged() -> Value:
            return self.icmp_unsigned("==", self.look(index, "acquire"), value)

        def unchanged_within(limit: int) -> Value:
            elapsed = self.sub(self.ask("team.ticks"), start)
            return self.and_(unchanged(), self.icmp_signed("<", elapsed, self.look(limit)))

        with self.repeat_while(lambda: unchanged_within(Word.SPIN)):
            self.ask("team.pause")
        with self.repeat_while(lambda: unchanged_within(Word.YIELD) if sleep else unchanged()):
            self.ask("sched_yield")
        if sleep:
            with self.if_then(unchanged(), likely=False):
                self.ask("team.sleep", self.arguments[0], value)


def _write_ticks(module: ir.Module) -> None:
    """ticks(): the time on the CPU's own clock, which costs only nanoseconds to read."""
    code = _TeamCode.begin(module, "team.ticks", [], I64)
    code.done(code.intrinsic("readcyclecounter", types=[], result=I64))


def _write_pause(module: ir.Module, arch: str) -> None:
    """pause(): some nanoseconds that leave memory and the core's other thread alone."""
    code = _TeamCode.begin(module, "team.pause", [], private=True)
    if arch == "aarch64":
        code.intrinsic("aarch64.isb", ir.Constant(I32, 15), types=[], result=VOID)  # most do nothing at a `yield`
    else:
        code.intrinsic("x86.sse2.pause", types=[], result=VOID)
    code.done()


def _write_listen(module: ir.Module) -> None:
    """listen(state): thread 0 lets Python handle signals, now and then. An exception stays with Python's thread."""
    code = _TeamCode.begin(module, "team.listen", [_STATE], private=True)
    now = code.ask("team.ticks")
    due = code.icmp_signed(">", code.sub(now, code.look(Word.HEARD)), code.look(Word.LISTEN))
    with code.if_then(code.and_(due, code.icmp_signed("==", code.look(Word.STOP), code.i64(0))), likely=False):
        code.set(now, Word.HEARD)
        code.ask("PyEval_RestoreThread", code.inttoptr(code.look(Word.OWNER), PTR))
        raised = code.icmp_signed("!=", code.ask("PyErr_CheckSignals"), ir.Constant(I32, 0))
        with code.if_then(raised, likely=False):
            code.set(code.or_(code.look(Word.STOP), code.i64(StopReason.RAISED)), Word.STOP)
        code.ask("PyEval_SaveThread")
    code.done()


def _write_barrier(module: ir.Module) -> None:
    """barrier(state, tid, threads): wait for all threads. The last to come decides for all whether to stop."""
    code = _TeamCode.begin(module, "team.barrier", [_STATE, I64, I64], I64)
    state, tid, threads = code.arguments
    with code.if_then(code.icmp_signed("==", tid, code.i64(0))):
        code.ask("team.listen", state)
        stop = code.look(Word.STOP)
        alone = code.or_(code.icmp_signed("==", threads, code.i64(1)), code.has(stop, StopReason.FORKED))
        with code.if_then(alone):
            code.ret(code.zext(code.icmp_signed("!=", stop, code.i64(0)), I64))
    before = code.look(Word.RELEASED)
    place = code.count(Word.ARRIVED, 1, "acq_rel")
    with code.if_else(code.icmp_signed("==", code.plus(place, 1), threads)) as (last, others):
        with last:
            code.set(0, Word.ARRIVED)
            following = code.plus(code.or_(before, code.i64(1)), 1)
            stop = code.and_(code.look(Word.STOP), code.i64(StopReason.RAISED))
            code.set(code.plus(following, stop), Word.RELEASED, "release")
        with others:
            code.wait_while(Word.RELEASED, before)
    # The word cannot change again before this thread comes to the next barrier.
    code.done(code.and_(code.look(Word.RELEASED, "acquire"), code.i64(1)))


def _write_publish(module: ir.Module) -> None:
    """publish(state, function, frame): give the workers a job, and wake those that sleep. The job's number."""
    code = _TeamCode.begin(module, "team.publish", [_STATE, PTR, PTR], I64, private=True)
    state, function, frame = code.arguments
    job = code.plus(code.look(Word.JOB), 1)
    code.set(code.ptrtoint(function, I64), Word.FUNCTION)
    code.set(code.ptrtoint(frame, I64), Word.FRAME)
    # In one order for all: here the job, then the sleepers; in `sleep` the sleepers, then the job. One sees the other.
    code.set(job, Word.JOB, "seq_cst")
    with code.if_then(code.icmp_signed(">", code.look(Word.SLEEPERS, "seq_cst"), code.i64(0)), likely=False):
        mutex = code.at(state, Word.MUTEX, I64)
        code.ask("pthread_mutex_lock", mutex)
        code.ask("pthread_cond_broadcast", code.at(state, Word.CONDITION, I64))
        code.ask("pthread_mutex_unlock", mutex)
    code.done(job)


def _write_launch(module: ir.Module) -> None:
    """launch(state, function, frame): run a program on all threads. Why it stopped early, or 0."""
    code = _TeamCode.begin(module, "team.launch", [_STATE, _PROGRAM, PTR], I64, private=True)
    state, function, frame = code.arguments
    threads = code.look(Word.THREADS)
    with code.if_else(code.icmp_signed("==", threads, code.i64(1))) as (alone, together):
        with alone:
            code.call(function, [frame, code.i64(0), threads, state])
        with together:
            job = code.ask("team.publish", state, function, frame)
            code.call(function, [frame, code.i64(0), threads, state])
            forked = code.has(code.look(Word.STOP), StopReason.FORKED)
            with code.if_then(code.not_(forked)):
                code.wait_while(Word.FINISHED, code.plus(job, -1))
    stopped = code.look(Word.STOP)
    with code.if_then(code.icmp_signed("!=", stopped, code.i64(0)), likely=False):
        code.set(0, Word.STOP)
    code.done(stopped)


def _write_enter(module: ir.Module) -> None:
    """enter(self, arguments, count): what Python calls. `self` and the two arguments are ints that are addresses."""
    code = _TeamCode.begin(module, "team.enter", [PTR, PTR, I64], PTR)
    this, arguments, _ = code.arguments
    objects = [this, code.read(arguments, 0, PTR), code.read(arguments, 1, PTR)]
    state, function, frame = (code.ask("PyLong_AsVoidPtr", each) for each in objects)
    nothing = ir.Constant(PTR, None)
    with code.if_then(code.icmp_unsigned("!=", code.ask("PyErr_Occurred"), nothing), likely=False):
        code.ret(nothing)
    me = code.ask("PyEval_SaveThread")
    stopped = code.ask("team.turn", state, function, frame, code.ptrtoint(me, I64))
    code.ask("PyEval_RestoreThread", me)
    with code.if_then(code.has(stopped, StopReason.RAISED), likely=False):
        code.ret(nothing)
    code.done(code.ask("PyLong_FromLong", stopped))


def _write_address(module: ir.Module) -> None:
    """address(self, array): where the elements of a NumPy array begin, for Python. The pointer is the first thing of an array's own."""
    code = _TeamCode.begin(module, "team.address", [PTR, PTR], PTR)
    place = code.read(code.at(code.arguments[1], object.__basicsize__, I8), 0, I64)
    code.done(code.ask("PyLong_FromLong", place))


def _write_turn(module: ir.Module) -> None:
    """turn(state, function, frame, me): wait for those that came before, then run a program."""
    code = _TeamCode.begin(module, "team.turn", [_STATE, _PROGRAM, PTR, I64], I64, private=True)
    state, function, frame, me = code.arguments
    with code.if_then(code.icmp_unsigned("==", code.look(Word.OWNER), me), likely=False):
        code.ret(code.i64(StopReason.NESTED))
    ticket = code.count(Word.TICKET, 1, "monotonic")
    with code.repeat_while(lambda: code.icmp_unsigned("!=", code.look(Word.SERVED, "acquire"), ticket)):
        code.ask("usleep", ir.Constant(I32, 50))
    code.set(me, Word.OWNER)
    stopped = code.ask("team.launch", state, function, frame)
    code.set(0, Word.OWNER)
    code.set(code.plus(ticket, 1), Word.SERVED, "release")
    code.done(stopped)


def _write_dismiss(module: ir.Module) -> None:
    """dismiss(state): the workers return to Python, and end."""
    code = _TeamCode.begin(module, "team.dismiss", [_STATE])
    nothing = ir.Constant(PTR, None)
    code.ask("team.publish", code.arguments[0], nothing, nothing)
    code.done()


def _write_sleep(module: ir.Module) -> None:
    """sleep(state, job): until there is another job."""
    code = _TeamCode.begin(module, "team.sleep", [_STATE, I64], private=True)
    state, job = code.arguments
    mutex, condition = code.at(state, Word.MUTEX, I64), code.at(state, Word.CONDITION, I64)
    code.ask("pthread_mutex_lock", mutex)
    code.count(Word.SLEEPERS, 1, "seq_cst")
    with code.repeat_while(lambda: code.icmp_signed("==", code.look(Word.JOB, "seq_cst"), job)):
        code.ask("pthread_cond_wait", condition, mutex)
    code.count(Word.SLEEPERS, -1, "seq_cst")
    code.ask("pthread_mutex_unlock", mutex)
    code.done()


def _write_work(module: ir.Module) -> None:
    """work(state, tid): the main loop of a worker."""
    code = _TeamCode.begin(module, "team.work", [_STATE, I64])
    state, tid = code.arguments
    entry, jobs = code.block, code.append_basic_block("jobs")
    code.branch(jobs)
    code.position_at_end(jobs)
    job = code.phi(I64, "job")
    job.add_incoming(code.i64(0), entry)
    code.wait_while(Word.JOB, job, sleep=True)
    following = code.plus(job, 1)
    function, frame = code.look(Word.FUNCTION), code.inttoptr(code.look(Word.FRAME), PTR)
    with code.if_then(code.icmp_unsigned("==", function, code.i64(0)), likely=False):
        code.ret_void()
    threads = code.look(Word.THREADS)
    code.call(code.inttoptr(function, _PROGRAM), [frame, tid, threads, state])
    place = code.count(Word.DONE, 1, "acq_rel")
    with code.if_then(code.icmp_signed("==", code.plus(place, 2), threads)):
        code.set(0, Word.DONE)
        code.set(following, Word.FINISHED, "release")
    job.add_incoming(following, code.block)
    code.branch(jobs)
