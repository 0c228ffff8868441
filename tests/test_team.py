"""Checks the team of threads: barriers separate, programs are alone, signals, forks and the end of Python are survived.

What could hang or end the test run itself happens in a process of its own: functions named `child_...`.
"""

import atexit
import ctypes
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
from llvmlite import ir

from sampling import some
from weft.compiler.cpu.engine import Loaded, object_code
from weft.compiler.cpu.ir_builder import I64, Code, new_module
from weft.compiler.cpu.team_code import BARRIER, PROGRAM, native_module
from weft.compiler.cpu.team_layout import Word
from weft.compiler.host import usable_cores
from weft.errors import RunError, UserError
from weft.runtime.team import YIELD, Team, _words, symbols, team

SIZES = [1, 2, 4, 7]


# --- native programs to run ------------------------------------------------------------------------------------------


@cache
def programs() -> Loaded:
    module = new_module("programs")
    barrier = ir.Function(module, BARRIER, "team.barrier")
    for write in (write_neighbours, write_late, write_endless, write_alone):
        write(module, barrier)
    return Loaded(object_code(module), symbols())


def write_neighbours(module: ir.Module, barrier: ir.Function) -> None:
    """frame: base, then a count of errors and a slot for each thread.

    Twice, each thread fills its slot, waits, and looks whether its neighbour's is full.
    """
    code = Code.begin(module, "neighbours", PROGRAM.args)
    frame, tid, threads, shared = code.arguments
    slots = code.at(frame, code.plus(threads, 1), I64)
    neighbour = code.srem(code.plus(tid, 1), threads)
    with code.loop(0, 2) as turn:
        base = code.plus(code.read(frame, 0, I64), code.times(turn, 1000))
        code.write(code.plus(base, tid), slots, tid)
        code.call(barrier, [shared, tid, threads])
        wrong = code.icmp_signed("!=", code.read(slots, neighbour, I64), code.plus(base, neighbour))
        errors = code.plus(code.read(frame, code.plus(tid, 1), I64), code.zext(wrong, I64))
        code.write(errors, frame, code.plus(tid, 1))
        code.call(barrier, [shared, tid, threads])
    code.done()


def write_late(module: ir.Module, barrier: ir.Function) -> None:
    """frame: for each thread, its number plus 1; the later threads take the longer to write it."""
    code = Code.begin(module, "late", PROGRAM.args)
    frame, tid, _, _ = code.arguments
    with code.loop(0, code.times(tid, 2000)):  # atomic, or LLVM would see through it
        code.atomic_rmw("add", code.at(frame, code.plus(tid, 16), I64), code.i64(1), "monotonic")
    code.write(code.plus(tid, 1), frame, tid)
    code.done()


def write_endless(module: ir.Module, barrier: ir.Function) -> None:
    """frame: for each thread the barriers it passed before one told it to stop, and that one's answer."""
    code = Code.begin(module, "endless", PROGRAM.args)
    frame, tid, threads, shared = code.arguments
    mine = code.at(frame, code.times(tid, 2), I64)
    again, end = code.append_basic_block("again"), code.append_basic_block("end")
    code.branch(again)
    code.position_at_end(again)
    answer = code.call(barrier, [shared, tid, threads])
    code.write(code.plus(code.read(mine, 0, I64), 1), mine, 0)
    code.cbranch(code.icmp_signed("==", answer, code.i64(0)), again, end)
    code.position_at_end(end)
    code.write(answer, mine, 1)
    code.done()


def write_alone(module: ir.Module, barrier: ir.Function) -> None:
    """frame: whether somebody is inside, runs, errors. Two programs at once would find each other inside."""
    code = Code.begin(module, "alone", PROGRAM.args)
    frame, tid, threads, shared = code.arguments
    with code.if_then(code.icmp_signed("==", tid, code.i64(0))):
        code.write(code.plus(code.read(frame, 2, I64), code.read(frame, 0, I64)), frame, 2)
        code.write(code.i64(1), frame, 0)
    code.call(barrier, [shared, tid, threads])
    with code.if_then(code.icmp_signed("==", tid, code.plus(threads, -1))):
        code.write(code.plus(code.read(frame, 1, I64), 1), frame, 1)
        code.write(code.i64(0), frame, 0)
    code.done()


def new_frame(*values: int, size: int = 32) -> Any:
    return (ctypes.c_int64 * size)(*values)


def run(crew: Team, name: str, frame: Any) -> None:
    crew.run(programs().address(name), ctypes.addressof(frame))


def works(crew: Team, times: int = 20) -> bool:
    """Whether the team runs a program right."""
    frame = new_frame()
    for base in range(times):
        frame[0] = base
        run(crew, "neighbours", frame)
    last = [times - 1 + 1000 + tid for tid in range(crew.threads)]
    return not any(frame[1 : crew.threads + 1]) and frame[crew.threads + 1 : 2 * crew.threads + 1] == last


# --- barriers and jobs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", SIZES)
def test_barriers_separate_what_threads_do(threads: int) -> None:
    assert works(
        team(threads), some(10_000 if threads <= usable_cores() else 2_000, 1.0)
    )  # those without a core wait for one


@pytest.mark.parametrize("threads", SIZES)
def test_run_returns_when_all_threads_are_through(threads: int) -> None:
    for _ in range(200):
        frame = new_frame()
        run(team(threads), "late", frame)
        assert frame[:threads] == list(range(1, threads + 1))


def test_there_is_one_team_of_each_size() -> None:
    assert team(2) is team(2)
    assert team(3).threads == 3


def test_a_team_needs_a_thread() -> None:
    with pytest.raises(UserError, match="1 thread or more, got 0"):
        Team(0)


def test_addresses_must_be_ints() -> None:
    with pytest.raises(TypeError, match="int"):
        team(2).run(programs().address("alone"), "frame")  # type: ignore[arg-type]
    assert works(team(2))


@pytest.mark.parametrize("threads", SIZES)
def test_workers_that_sleep_are_woken(threads: int) -> None:
    crew = Team(threads)
    assert works(crew)
    for _ in range(3):
        until(lambda: asleep(crew) == threads - 1)
        assert works(crew)


def test_jobs_that_come_while_workers_fall_asleep() -> None:
    crew, chance = Team(2), random.Random(0)
    for _ in range(100):
        time.sleep(YIELD * 1e-6 * chance.uniform(0.9, 1.1))
        assert works(crew, 1)


def asleep(crew: Team) -> int:
    return int(_words(crew._state)[Word.SLEEPERS])


def until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.001)


def test_programs_of_several_python_threads_run_one_after_another() -> None:
    crew, frame, finished = Team(2), new_frame(), []
    function = programs().address("alone")

    def many() -> None:
        for _ in range(200):
            crew.run(function, ctypes.addressof(frame))
        finished.append(True)

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(finished) == 4
    assert list(frame[:3]) == [0, 800, 0]


def test_a_team_makes_do_with_fewer_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    crew = Team(7)
    assert works(crew)
    assert crew.threads == 3


def test_the_workers_of_a_forgotten_team_end() -> None:
    before = set(threading.enumerate())
    crew = Team(4)
    assert works(crew)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 3
    del crew
    gc.collect()
    until(lambda: not any(worker.is_alive() for worker in workers))


@pytest.mark.parametrize("arch", ["aarch64", "x86_64"])
def test_the_native_code_is_sound_for_all_cpus(arch: str) -> None:
    llvm.parse_assembly(str(native_module(arch))).verify()


# --- signals, forks, the end -----------------------------------------------------------------------------------------


def in_child(name: str, *arguments: Any) -> str:
    """Call a function of this module in a new process, with the test programs compiled; what it printed."""
    here = Path(__file__).resolve().parent
    # A process that was started in the background may have been told to ignore interrupts, and would pass that on.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    call = f"{listen}; import test_team; test_team.programs(); test_team.{name}(*{arguments!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), str(here.parent), *sys.path])}
    # Python warns of forks in a process with threads, which is the very thing under test.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", call]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_an_interrupt_stops_a_program_on_all_threads(threads: int) -> None:
    assert in_child("child_interrupt", threads) == "fine\n"


def child_interrupt(threads: int) -> None:
    crew = team(threads)
    assert works(crew)
    for _ in range(3):
        frame = new_frame()
        threading.Thread(target=interrupt_after_barriers, args=(frame,)).start()
        with pytest.raises(KeyboardInterrupt):
            run(crew, "endless", frame)
        passed, answers = frame[0 : 2 * threads : 2], frame[1 : 2 * threads : 2]
        assert answers == [1] * threads, "all threads were told to stop"
        assert len(set(passed)) == 1, "at the same barrier"
        assert passed[0] > 10
        assert works(crew)
    print("fine")


def interrupt_after_barriers(frame: Any) -> None:
    while frame[0] <= 10:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_what_a_handler_raises_is_raised_by_run() -> None:
    assert in_child("child_handler_raises") == "fine\n"


def child_handler_raises() -> None:
    def handler(*_: Any) -> None:
        raise ArithmeticError("from the handler")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(ArithmeticError, match="from the handler") as caught:
        run(team(2), "endless", new_frame())
    assert [entry.name for entry in caught.traceback][-1] == "handler"
    assert works(team(2))
    print("fine")


def test_a_handler_that_returns_does_not_stop_the_program() -> None:
    assert in_child("child_handler_returns") == "fine\n"


def child_handler_returns() -> None:
    calls = []

    def handler(*_: Any) -> None:
        calls.append(True)
        if len(calls) == 4:
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.15)
    with pytest.raises(KeyboardInterrupt):
        run(team(2), "endless", new_frame())
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert len(calls) == 4
    print("fine")


def test_a_handler_cannot_run_a_program_on_the_same_team() -> None:
    assert in_child("child_nested") == "fine\n"


def child_nested() -> None:
    def handler(*_: Any) -> None:
        assert works(team(3)), "another team can"
        run(team(2), "alone", new_frame())

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(UserError, match="running a program already"):
        run(team(2), "endless", new_frame())
    assert works(team(2))
    print("fine")


def test_a_forked_process_gets_workers_of_its_own() -> None:
    assert in_child("child_fork") == "child fine\nparent fine\n"


def child_fork() -> None:
    crew = team(3)
    assert works(crew)
    fork_and_wait(lambda: say_if("child fine", works(crew)))
    assert works(crew)
    print("parent fine")


def say_if(text: str, is_fine: bool) -> None:
    """Print it at once; what is missing in the output is found by whoever reads that."""
    print(text if is_fine else f"not {text}", flush=True)


def fork_and_wait(job: Any) -> None:
    pid = os.fork()
    if pid == 0:
        job()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_fork_while_another_thread_runs_a_program() -> None:
    assert in_child("child_fork_while_running") == "child fine\nparent fine\n"


def child_fork_while_running() -> None:
    crew, frame = team(2), new_frame()
    busy = threading.Thread(target=run, args=(crew, "endless", frame), daemon=True)
    busy.start()
    until(lambda: frame[0] > 1000)
    fork_and_wait(lambda: say_if("child fine", works(crew)))
    before = frame[0]
    until(lambda: frame[0] > before + 1000)
    print("parent fine")


def test_a_fork_in_a_handler_stops_the_program_of_the_child() -> None:
    assert in_child("child_fork_in_handler") == "child fine\nparent fine\n"


def child_fork_in_handler() -> None:
    crew, frame, parent = team(2), new_frame(), os.getpid()

    def handler(*_: Any) -> None:
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        run(crew, "endless", frame)
    except RunError:
        say_if("child fine", os.getpid() != parent and works(crew))
        os._exit(0)
    except KeyboardInterrupt:
        say_if("parent fine", os.getpid() == parent and works(crew))


@pytest.mark.parametrize("idle", [0.0, 0.002, 0.05])
def test_python_ends_at_once_whatever_workers_do(idle: float) -> None:
    start = time.monotonic()
    assert in_child("child_end", idle) == "last words\n"
    assert time.monotonic() - start < 20


def child_end(idle: float) -> None:
    crews = [team(2), team(5), Team(3)]
    assert all(works(crew) for crew in crews)
    atexit.register(lambda: say_if("last words", works(crews[1])))
    time.sleep(idle)


def test_python_ends_while_a_daemon_thread_runs_a_program() -> None:
    assert in_child("child_end_while_running") == "fine\n"


def child_end_while_running() -> None:
    frame = new_frame()
    threading.Thread(target=run, args=(team(2), "endless", frame), daemon=True).start()
    until(lambda: frame[0] > 1000)
    print("fine")


def test_a_crowded_machine_stays_usable() -> None:
    assert in_child("child_crowded") == "fine\n"


def child_crowded() -> None:
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        assert works(team(4), 50)
        assert works(team(2), 200)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    print("fine")
