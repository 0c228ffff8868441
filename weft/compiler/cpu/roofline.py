"""The roofline of this machine: peak arithmetic throughput and peak memory bandwidth of a number of threads.

No kernel can exceed both, so its distance from the roofline says whether optimizing it would pay. Both numbers are
measured, in float32: fused multiply-adds on registers alone, and a triad (a = b + s * c) on arrays far larger than the last
cache. They are cached on disk.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir

from ...records import dataclass
from .engine import Loaded, kept_code, object_code
from .ir_builder import F32, I64, PTR, Code, Value, constant, new_module, vector
from .target import CpuTarget, host

FORMAT = 3  # of what is kept, and of how it is measured
# A trial takes a millisecond or two: short enough that some are not disturbed by other programs.
FMA_STEPS, TRIAD_PARTS = 300_000, 8
UNROLL = 4  # vectors in one step of the triad
TRIES, PATIENCE = 10, 1.0  # undisturbed tries, and the seconds in which to find them
SMALLEST, LARGEST = 32 << 20, 512 << 20  # bytes of each array of the triad


@dataclass(frozen=True)
class Roof:
    """Peak rates of all threads together, per second."""

    flops: float  # operations, in float32
    bandwidth: float  # bytes
    sure: bool = True  # False: other programs kept the cores busy, so the numbers are too low
    byte_rate: float = 1.0  # operations on bytes for each one in float32; modelled

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        """The least time for this work. Of elements wider than float32, fewer fit into a vector."""
        rate = self.flops * self.byte_rate if itemsize == 1 else self.flops / max(1, itemsize // 4)
        return max(flops / rate, nbytes / self.bandwidth)

    def __str__(self) -> str:
        doubt = "" if self.sure else " or more: other programs kept this machine busy while it was measured"
        of_bytes = f" ({self.byte_rate:g} times as many operations on bytes, modelled)" if self.byte_rate != 1 else ""
        return f"{self.flops / 1e9:.1f} GFLOP/s{of_bytes}, {self.bandwidth / 1e9:.1f} GB/s{doubt}"


class _Busy(Exception):
    """The machine was too busy for a measurement that is worth keeping."""


_UNSURE: dict[int, Roof] = {}  # by threads: good enough for this process


def roof(threads: int) -> Roof:
    """The roofline for this many threads: measured the first time on this machine, then read from the disk."""

    def make() -> bytes:
        found = _UNSURE.get(threads) or measured(threads)
        if not found.sure:
            _UNSURE[threads] = found
            raise _Busy
        return json.dumps(asdict(found)).encode()

    try:
        key = f"roof {FORMAT} threads {threads} of {os.cpu_count()} cores, last cache {last_cache()}"
        return Roof(**json.loads(kept_code(key, make)))
    except _Busy:
        return _UNSURE[threads]


def measured(threads: int) -> Roof:
    """The roof, measured now; it takes less than a second, two on a busy machine."""
    loaded = Loaded(object_code(_module(host())))
    fma = loaded.function("roof.fma", [ctypes.c_void_p, ctypes.c_int64])
    triad = loaded.function("roof.triad", [ctypes.c_void_p] * 3 + [ctypes.c_int64])
    flops = _Race(threads, lambda: _fma_run(fma))
    traffic = _Race(threads, lambda: _triad_run(triad, _elements(threads)))
    return Roof(flops.best(), traffic.best(), flops.sure and traffic.sure, _int8_rate(host()))


def _int8_rate(target: CpuTarget) -> float:
    """How many times faster products of bytes are than those of float32, at their peak."""
    if target.matrix:
        return 32.0  # 1024 a cycle, of 32 by two vector units
    # A dot product of bytes takes an instruction as a multiply-add in float32 does, and multiplies four bytes in each lane.
    return 4.0 if target.dot else 1.0


def last_cache() -> int:
    """The bytes of the largest cache, as Linux reports it."""
    sizes = [32 << 20]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            sizes.append(int(path.read_text().strip().removesuffix("K")) << 10)
        except (OSError, ValueError):
            continue
    return max(sizes)


def _elements(threads: int) -> int:
    """The elements of a thread's arrays: all threads' together are at least twice the last cache, each of the three."""
    nbytes = min(LARGEST, max(SMALLEST, 2 * last_cache()))
    step = TRIAD_PARTS * UNROLL * host().lanes(32)
    return nbytes // 4 // threads // step * step


# --- measuring ----------------------------------------------------------------------------------------------------------------

Run = Callable[[], float]  # does the work once; how much it was


@dataclass
class _Part:
    """The work of one thread in one trial, and when it ran."""

    start: float
    end: float
    on_core: float  # seconds of these in which the thread really ran
    work: float


class _Race:
    """All threads repeat the same work at the same time; the result is their highest combined rate.

    A trial counts if no thread was preempted. Threads that ran one after the other do not count: each had the whole memory bandwidth.
    """

    def __init__(self, threads: int, prepare: Callable[[], Run]) -> None:
        self.threads, self.prepare = threads, prepare
        self.parts: dict[int, _Part] = {}
        self.rates: dict[bool, list[float]] = {True: [], False: []}  # of tries that were undisturbed, and of others
        self.together = threading.Barrier(threads, self._judge)
        self.deadline: float | None = None
        self.over = False

    @property
    def sure(self) -> bool:
        """Whether there were enough undisturbed trials: the best of one or two was a third too low on a busy machine."""
        return len(self.rates[True]) >= TRIES

    def best(self) -> float:
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(self._run, range(self.threads)))
        return max(self.rates[True] or self.rates[False])

    def _run(self, tid: int) -> None:
        run = self.prepare()  # in the thread, so that its memory is near its core
        run()
        while True:
            self.together.wait()
            if self.over:
                return
            start, on_core = time.perf_counter(), time.thread_time()
            work = run()
            self.parts[tid] = _Part(start, time.perf_counter(), time.thread_time() - on_core, work)

    def _judge(self) -> None:
        """Evaluate the last trial; runs in one of the threads, between two trials."""
        now = time.perf_counter()
        self.deadline = self.deadline or now + PATIENCE
        if self.parts:
            parts = self.parts.values()
            span = max(p.end for p in parts) - min(p.start for p in parts)
            undisturbed = sum(p.on_core for p in parts) > 0.95 * span * self.threads
            self.rates[undisturbed].append(sum(p.work for p in parts) / span)
        self.over = len(self.rates[True]) >= TRIES or (now > self.deadline and bool(self.parts))


def _fma_run(function: Any) -> Run:
    place = np.full(64, 1e-3, np.float32)
    target = host()

    def run() -> float:
        function(place.ctypes.data, FMA_STEPS)
        return 2.0 * FMA_STEPS * _accumulators(target) * target.lanes(32)

    return run


def _triad_run(function: Any, elements: int) -> Run:
    """Each run uses another part of the arrays, which the runs before have evicted from the cache."""
    arrays = [np.ones(elements, np.float32) for _ in range(3)]
    count = elements // TRIAD_PARTS
    turns = itertools.cycle(range(TRIAD_PARTS))

    def run() -> float:
        first = 4 * count * next(turns)
        function(*(a.ctypes.data + first for a in arrays), count)
        return 3.0 * 4 * count

    return run


# --- code ---------------------------------------------------------------------------------------------------------------------


def _accumulators(target: CpuTarget) -> int:
    """The number of independent sums that hides the latency of an fma and leaves registers for its operands."""
    return 24 if target.registers >= 32 else 12


def _module(target: CpuTarget) -> ir.Module:
    module = new_module("roof")
    _write_fma(module, target)
    _write_triad(module, target)
    return module


def _write_fma(module: ir.Module, target: CpuTarget) -> None:
    """fma(place, steps): multiply-adds on registers; two vectors are read from `place`, the sum is written there."""
    code = Code.begin(module, "roof.fma", [PTR, I64])
    place, steps = code.arguments
    kind = vector(F32, target.lanes(32))
    x, y = code.read(place, 0, kind), code.read(place, target.lanes(32), kind)

    def step(_: Value, sums: list[Value]) -> list[Value]:
        return [code.fma(x, y, s) for s in sums]

    initial = [constant(kind, float(i)) for i in range(_accumulators(target))]
    sums = code.loop_carrying(0, steps, initial, step)
    total = sums[0]
    for other in sums[1:]:
        total = code.fadd(total, other)
    code.write(total, place, 2 * target.lanes(32))
    code.done()


def _write_triad(module: ir.Module, target: CpuTarget) -> None:
    """triad(a, b, c, count): a = b + 0.5 * c."""
    code = Code.begin(module, "roof.triad", [PTR, PTR, PTR, I64])
    a, b, c, count = code.arguments
    lanes = target.lanes(32)
    kind = vector(F32, lanes)
    half = constant(kind, 0.5)
    with code.loop(0, count, UNROLL * lanes) as i:
        for part in range(UNROLL):
            at = code.plus(i, part * lanes)
            code.write(code.fma(half, code.read(c, at, kind), code.read(b, at, kind)), a, at)
    code.done()
