"""The team of threads that runs a native program: one call from Python starts it on all threads, without Python in between.

A program is a native function `void f(ptr frame, i64 tid, i64 threads, ptr team)` that every thread of the team calls at
the same time, the caller of `Team.run` as number 0. Between its steps it calls `i64 team.barrier(ptr team, i64 tid,
i64 threads)`, which returns when all threads have reached it. If it returns a value other than 0, which it then does in all threads, the
program returns at once: a signal handler has raised an exception, which `run` raises again. (Python handles signals at barriers only, so a
program should not run long without one.)

The workers are Python's daemon threads that enter native code once and stay there. A worker without work first spins,
since the next call mostly comes within microseconds, then gives its core to whoever wants it, and after a few
milliseconds sleeps. All that the threads share are a few words of memory.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import numpy as np

from ..compiler import cpu as compiler
from ..compiler.cpu.team_layout import LINE, OF_LIBC, OF_PYTHON, StopReason, Word
from ..compiler.host import usable_cores
from ..errors import RunError, UserError

# How long a waiting thread spins, then yields, before it sleeps, in microseconds.
SPIN, YIELD = 40, 4_000
LISTEN = 100_000  # how often a running program lets Python handle its signals


class Team:
    """A team of this many threads, including the caller's. The workers start at the first run, and again in a forked process."""

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise UserError("team", f"a team has 1 thread or more, got {threads}.")
        self.threads = threads  # reduced at the first run if the system cannot start as many
        self._enter: Callable[[int, int], int] | None = None
        self._state = 0  # the address of the shared words
        self._starting = threading.Lock()
        self._dismissal: Any = None
        _everyone.add(self)

    def run(self, function: int, frame: int) -> None:
        """Run the program at this address on all threads and wait for its end; it is given `frame`, an address.

        Programs that several threads of Python run on one team run one after another, in the order of the calls.
        """
        stopped = (self._enter or self._start())(function, frame)
        if not stopped:
            return
        if stopped == StopReason.NESTED:
            raise UserError("team", "this thread is running a program already; a signal's handler cannot run one.")
        if stopped == StopReason.FORKED:
            raise RunError("team", "the process was forked while its program ran. It continues in the parent only.")

    def _start(self) -> Callable[[int, int], int]:
        with self._starting:
            if self._enter is None:
                native = _native()
                self._state = _new_state(self.threads, native)
                self.threads = 1 + _start_workers(native, self._state, self.threads - 1)
                _words(self._state)[Word.THREADS] = self.threads
                self._dismissal = weakref.finalize(self, native.dismiss, self._state)
                self._dismissal.atexit = False
                self._enter = native.enter(self._state)
            return self._enter

    def _forked(self) -> None:
        """A forked child has the forking thread only, and the state of the others is unknown."""
        if self._enter is not None:
            # Stops the program that this thread is running, if a signal handler forked.
            _words(self._state)[Word.STOP] |= StopReason.FORKED
            self._dismissal.detach()
        self._enter, self._starting = None, threading.Lock()


def team(threads: int) -> Team:
    """The team of this size; there is one of each size."""
    return _teams.get(threads) or _teams.setdefault(threads, Team(threads))


def symbols() -> list[tuple[str, int]]:
    """The runtime functions that programs are linked with: names and addresses."""
    return [("team.barrier", _native().barrier), ("team.ticks", _native().ticks)]


@cache
def address_of() -> Callable[[np.ndarray], int]:
    """A function that returns the address of an array's elements: NumPy's own takes longer than a small program. It reads the pointer at
    the offset that NumPy's C interface specifies.
    """
    found, sample = _native().address(), np.zeros(3)
    return found if found(sample) == sample.ctypes.data else lambda array: array.ctypes.data


def ticks_per_us() -> float:
    """The rate of the clock that `team.ticks` reads."""
    return _native().ticks_per_us


def ticks() -> int:
    """The time on that clock."""
    return int(_native().read_ticks())


_teams: dict[int, Team] = {}
_everyone: weakref.WeakSet[Team] = weakref.WeakSet()


def _after_fork() -> None:
    for member in list(_everyone):
        member._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _start_workers(native: _Native, state: int, count: int) -> int:
    """Start workers; returns how many there are. No result depends on their number, so fewer are acceptable."""
    for tid in range(1, count + 1):
        try:
            threading.Thread(target=native.work, args=(state, tid), name=f"weft {tid}", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the interpreter is shutting down
            return tid - 1
    return count


def _words(state: int) -> Any:
    return (ctypes.c_int64 * Word.ALL).from_address(state)


def _new_state(threads: int, native: _Native) -> int:
    """New shared words. They are never freed: workers may read them until the process ends."""
    line = 8 * LINE
    state = -(-int(native.calloc(1, 8 * Word.ALL + line)) // line) * line
    words = _words(state)
    # With more threads than cores, spinning threads would take cores from those that they wait for.
    words[Word.SPIN] = int(SPIN * native.ticks_per_us) if threads <= usable_cores() else 0
    words[Word.YIELD], words[Word.LISTEN] = int(YIELD * native.ticks_per_us), int(LISTEN * native.ticks_per_us)
    native.mutex_init(state + 8 * Word.MUTEX, None)
    native.cond_init(state + 8 * Word.CONDITION, None)
    return state


def native_code() -> bytes:
    """The object code of all teams."""
    engine, arch = compiler.engine, compiler.target.host().arch
    return engine.kept_code("team", lambda: engine.object_code(compiler.team_code.native_module(arch)))


class _Native:
    """The native functions, created once and never freed: workers still run them when the interpreter shuts down."""

    def __init__(self) -> None:
        libc, address, i64 = ctypes.CDLL(None), ctypes.c_void_p, ctypes.c_int64
        self._loaded = loaded = compiler.engine.Loaded(native_code(), _imports(libc))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        self.barrier, self.ticks = loaded.address("team.barrier"), loaded.address("team.ticks")
        self.work: Any = loaded.function("team.work", [address, i64])
        self.dismiss: Any = loaded.function("team.dismiss", [address])
        self.calloc: Any = ctypes.CFUNCTYPE(address, ctypes.c_size_t, ctypes.c_size_t)(("calloc", libc))
        self.mutex_init: Any = ctypes.CFUNCTYPE(None, address, address)(("pthread_mutex_init", libc))
        self.cond_init: Any = ctypes.CFUNCTYPE(None, address, address)(("pthread_cond_init", libc))
        self.read_ticks: Any = loaded.function("team.ticks", [], i64)
        self.ticks_per_us = _ticks_per_us(self.read_ticks)
        self._enter = _Method(b"run", loaded.address("team.enter"), _METH_FASTCALL, None)
        self._address = _Method(b"address", loaded.address("team.address"), _METH_O, None)

    def enter(self, state: int) -> Callable[[int, int], int]:
        """A function that runs programs on a team."""
        return cast(Callable[[int, int], int], _builtin(self._enter, state))

    def address(self) -> Callable[[np.ndarray], int]:
        """A function that returns the address of an array's elements."""
        return cast(Callable[[np.ndarray], int], _builtin(self._address, None))


def _builtin(method: _Method, this: Any) -> Any:
    """A builtin function of Python with native code: it costs a fifth of a call through ctypes."""
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return make(("PyCFunction_NewEx", ctypes.pythonapi))(ctypes.addressof(method), this, None)


class _Method(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# Calling conventions of such functions: (self, arguments, their number); (self, argument).
_METH_FASTCALL, _METH_O = 0x80, 0x08


@cache
def _native() -> _Native:
    return _Native()


def _ticks_per_us(ticks: Any) -> float:
    """The rate of the CPU's clock: the median, since this thread may be descheduled while it measures."""

    def measure() -> float:
        tick, start = ticks(), time.perf_counter_ns()
        while time.perf_counter_ns() - start < 100_000:
            pass
        return float((ticks() - tick) * 1000 / (time.perf_counter_ns() - start))

    return sorted(measure() for _ in range(3))[1]


def _imports(libc: ctypes.CDLL) -> list[tuple[str, int]]:
    found = [(name, getattr(ctypes.pythonapi, name)) for name in OF_PYTHON]
    found += [(name, getattr(libc, name)) for name in OF_LIBC]
    return [(name, ctypes.cast(function, ctypes.c_void_p).value or 0) for name, function in found]
