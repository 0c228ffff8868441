"""Times of a compiled program's calls. They are measured by a variant of the program in which every thread records a timestamp before and
after every call. It has the same barriers as the program itself: another one after each call would add a tenth to a short program on 16
threads. Work that is done once, such as packing constant weights, is done before and not measured. The variant runs on copies of all memory
that it writes to, so the caller's values do not change and every run starts from the same ones.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..compiler import cpu as compiler
from ..compiler.ir.frame import FRAME_RESERVED, nbytes
from ..errors import RunError
from ..options import CompileOptions
from .collectives import collectives_of
from .facts import CallTime, Profile
from .team import symbols, team, ticks_per_us

if TYPE_CHECKING:
    from ..compiler.ir.program import KernelProgram
    from ..mesh.programs import CollectiveProgram

FEWEST, MOST = 3, 50  # runs, by default
ENOUGH = 0.5  # seconds of them


def profile(
    program: KernelProgram, options: CompileOptions, inputs: Sequence[int], repeats: int | None = None
) -> Profile:
    """Run a program on inputs at these addresses several times, with timestamps and without. Nothing is written to the inputs."""
    run = _IsolatedRun(program, inputs, options)
    for timed in (False, True):
        run.seconds(timed)  # the first runs map memory, wake threads and prepare constants
    run.prepare_constants = False
    runs: list[np.ndarray] = []
    whole: dict[bool, list[float]] = {False: [], True: []}
    end = time.perf_counter() + ENOUGH
    while len(runs) < (repeats or FEWEST) or (repeats is None and len(runs) < MOST and time.perf_counter() < end):
        for timed in (False, True):  # in turns, so that other load of the machine affects both
            whole[timed].append(run.seconds(timed))
        runs.append(call_ticks(run.stamps))
    ticks = np.median(runs, axis=0)
    seconds = np.maximum(ticks[0], 0.5) / ticks_per_us() / 1e6  # the clock may be too slow to see a call at all
    calls = [
        CallTime(i, c, float(s), waited(ticks[:, i]))
        for i, (c, s) in enumerate(zip(program.calls, seconds, strict=True))
        if not c.once
    ]
    plain, with_clock = (float(np.median(whole[timed])) for timed in (False, True))
    return Profile(program, calls, len(runs), plain, with_clock)


def call_ticks(stamps: np.ndarray) -> np.ndarray:
    """The ticks of every call, and in the next row those in which threads worked on it, from the begin and end timestamps of all threads
    [threads, calls, 2].

    A call lasts from the moment when the slowest thread has done everything before it until that thread has done the call, so calls add up to the
    run. The first begins when all threads are awake. Calls that did not run have no stamps, and take no time.

    >>> call_ticks(np.array([[[10, 14], [0, 0], [15, 20]], [[11, 17], [0, 0], [17, 19]]]))
    array([[6, 0, 3],
           [4, 0, 5],
           [6, 0, 2]])
    """
    begins, ends = stamps[..., 0], stamps[..., 1]
    ran = np.flatnonzero(ends.all(axis=0))
    awake = begins[:, ran[0]].max() if len(ran) else 0
    done = np.maximum.accumulate(np.maximum(ends.max(axis=0, initial=0), awake))
    return np.vstack([np.diff(done, prepend=awake), ends - begins])


def waited(ticks: np.ndarray) -> float:
    """The share of the threads' time in which they wait for the slowest, from a call's ticks and those in which each thread worked.

    >>> waited(np.array([100, 100, 50]))
    0.25
    """
    whole, threads = float(ticks[0]), len(ticks) - 1
    return max(0.0, 1.0 - float(ticks[1:].sum()) / (threads * whole)) if whole else 0.0


class _IsolatedRun:
    """A program and its variant with timestamps, with memory of their own for everything that they write."""

    def __init__(self, program: KernelProgram, inputs: Sequence[int], options: CompileOptions) -> None:
        variants = {timed: compiler.module.write(program, timestamps=timed) for timed in (False, True)}
        collectives = collectives_of(program.graph)
        self._loaded = {t: loaded_variant(w, bool(options.optimize), collectives) for t, w in variants.items()}
        self._main = {timed: loaded.address("main") for timed, loaded in self._loaded.items()}
        self._team, self._sites = team(options.threads), variants[True].sites
        self._status = np.array([0, 0, 1, 0 if collectives is None else collectives.mesh.table_address], np.int64)
        self.prepare_constants = True  # work that is done once, until constants change
        self.stamps = np.zeros((options.threads, len(program.calls), 2), np.int64)  # of the last run with a clock
        self._prepare(program, inputs)

    def _prepare(self, program: KernelProgram, inputs: Sequence[int]) -> None:
        """The frame, with memory for the arena, the results and the replaced state."""
        graph = program.graph
        self._arena = _room(program.memory.arena)
        states = {i: _room(nbytes(graph.inputs[i])) for i in set(program.updates.values())}
        self._restore = [(buffer.ctypes.data, inputs[i], nbytes(graph.inputs[i])) for i, buffer in states.items()]
        self._results = [_room(nbytes(o)) for o in graph.outputs]
        given = [states[i].ctypes.data if i in states else address for i, address in enumerate(inputs)]
        self._states = states
        self._kept = np.empty(program.memory.kept + 64, np.uint8)
        kept = -(-self._kept.ctypes.data // 64) * 64
        reserved = [self._arena.ctypes.data, self._status.ctypes.data, kept]
        addresses = [*reserved, *given, *(r.ctypes.data for r in self._results)]
        assert len(addresses) == program.frame_size == FRAME_RESERVED + len(graph.inputs) + len(graph.outputs)
        self._frame = (ctypes.c_int64 * (len(addresses) + 1))(*addresses, self.stamps.ctypes.data)

    def seconds(self, timed: bool) -> float:
        """The time of one run on the given values; for the variant with timestamps, `stamps` receives begin and end of every call in each
        thread."""
        for target, source, size in self._restore:
            ctypes.memmove(target, source, size)
        self.stamps[:] = 0
        self._status[2] = self.prepare_constants
        begin = time.perf_counter()
        self._team.run(self._main[timed], ctypes.addressof(self._frame))
        taken = time.perf_counter() - begin
        if self._status[0]:
            site, value = map(int, self._status[:2])
            self._status[:2] = 0
            where, message, source = self._sites[site - 1]
            raise RunError(where, message.format(value=value), source)
        return taken


def linked_functions(
    called: Iterable[str], optimize: bool, collectives: CollectiveProgram | None = None
) -> Iterator[tuple[str, int]]:
    """The library functions that a program calls, with the addresses of those that are linked."""
    for symbol in called:
        found = symbol if collectives is None else collectives.linked_symbol(symbol)
        yield symbol, compiler.library.address(found, lambda: compiler.backend.LOWERINGS, optimize=optimize)


def loaded_variant(
    written: Any, optimize: bool, collectives: CollectiveProgram | None = None
) -> compiler.engine.Loaded:
    """The machine code of a variant. Its cache key is its own text, so its calls are certain to be these, in this order."""
    digest = hashlib.blake2b(str(written.module).encode(), digest_size=20).hexdigest()
    key = f"timestamped program {digest} optimize {optimize}"
    code = compiler.engine.kept_code(key, lambda: compiler.engine.object_code(written.module, optimize))
    return compiler.engine.Loaded(code, [*symbols(), *linked_functions(written.symbols, optimize, collectives)])


def _room(size: int) -> np.ndarray:
    """Memory aligned to a cache line."""
    try:
        memory = np.empty(size + 64, np.uint8)
    except (MemoryError, ValueError):
        raise RunError("profile", f"not enough memory for a copy of {size >> 20} MiB.") from None
    return memory[-memory.ctypes.data % 64 :]
