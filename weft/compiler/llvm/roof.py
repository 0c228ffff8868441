"""The roof of this machine: the most arithmetic and the most memory traffic that so many threads can do in a second.

No kernel can be faster than both allow, so its distance from the roof says whether work on it would pay. Both numbers are
measured, in float32: fused multiply-adds on registers alone, and a triad (a = b + s * c) on arrays far larger than the last
cache. They are kept on disk, since a machine does not change.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir

from .build import F32, I64, PTR, Code, Value, constant, new_module, vector
from .engine import Loaded, object_code
from .store import kept
from .target import Target, host

FORMAT = 1  # of what is kept, and of how it is measured
FMA_STEPS = 120_000  # some milliseconds: short enough that some try is not disturbed by other programs
UNROLL = 4  # vectors in one step of the triad
TRIES = 30
SMALLEST, LARGEST = 32 << 20, 512 << 20  # bytes of each array of the triad


@dataclass(frozen=True)
class Roof:
    """What all threads together can do in a second."""

    flops: float  # operations, in float32
    bandwidth: float  # bytes

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        """The least time for so much work. Wider elements than float32 fill the vectors with fewer of them."""
        return max(flops * max(1, itemsize // 4) / self.flops, nbytes / self.bandwidth)


def roof(threads: int) -> Roof:
    """The roof for so many threads: measured the first time on this machine, then read from the disk."""
    key = f"roof {FORMAT} threads {threads} of {os.cpu_count()} cores, last cache {last_cache()}"
    known = json.loads(kept(key, lambda: json.dumps(asdict(measured(threads))).encode()))
    return Roof(known["flops"], known["bandwidth"])


def measured(threads: int) -> Roof:
    """The roof, measured now; it takes less than a second."""
    loaded = Loaded(object_code(_module(host())))
    fma = loaded.function("roof.fma", [ctypes.c_void_p, ctypes.c_int64])
    triad = loaded.function("roof.triad", [ctypes.c_void_p] * 3 + [ctypes.c_int64])
    flops = _best_rate(threads, lambda: _fma_run(fma))
    bandwidth = _best_rate(threads, lambda: _triad_run(triad, _elements(threads)))
    return Roof(flops, bandwidth)


def last_cache() -> int:
    """The bytes of the largest cache, as Linux tells it."""
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
    step = UNROLL * host().lanes(32)
    return nbytes // 4 // threads // step * step


# --- measuring ----------------------------------------------------------------------------------------------------------------

Run = Callable[[], float]  # does the work once; how much it was


def _best_rate(threads: int, prepare: Callable[[], Run]) -> float:
    """The most work a second that all threads do at one time; the best of several tries, since others use the machine too."""
    together = threading.Barrier(threads)

    def work(_: int) -> list[tuple[float, float, float]]:
        run = prepare()  # in the thread, so that its memory is near its core
        run()
        tries = []
        for _ in range(TRIES):
            together.wait()
            start = time.perf_counter()
            done = run()
            tries.append((start, time.perf_counter(), done))
        return tries

    with ThreadPoolExecutor(threads) as pool:
        return max(map(_rate, zip(*pool.map(work, range(threads)), strict=True)))


def _rate(parts: Sequence[tuple[float, float, float]]) -> float:
    """From the first start to the last end: rates of threads that ran one after the other must not be added."""
    starts, ends, work = zip(*parts, strict=True)
    return float(sum(work) / (max(ends) - min(starts)))


def _fma_run(function: Any) -> Run:
    place = np.full(64, 1e-3, np.float32)
    target = host()

    def run() -> float:
        function(place.ctypes.data, FMA_STEPS)
        return 2.0 * FMA_STEPS * _accumulators(target) * target.lanes(32)

    return run


def _triad_run(function: Any, elements: int) -> Run:
    arrays = [np.ones(elements, np.float32) for _ in range(3)]

    def run() -> float:
        function(*(a.ctypes.data for a in arrays), elements)
        return 3.0 * 4 * elements

    return run


# --- code ---------------------------------------------------------------------------------------------------------------------


def _accumulators(target: Target) -> int:
    """So many independent sums hide the latency of an fma, and leave registers for its operands."""
    return 24 if target.registers >= 32 else 12


def _module(target: Target) -> ir.Module:
    module = new_module("roof")
    _write_fma(module, target)
    _write_triad(module, target)
    return module


def _write_fma(module: ir.Module, target: Target) -> None:
    """fma(place, steps): multiply-adds on registers; two vectors are read from `place`, the sum is written there."""
    code = Code.begin(module, "roof.fma", [PTR, I64])
    place, steps = code.arguments
    kind = vector(F32, target.lanes(32))
    x, y = code.read(place, 0, kind), code.read(place, target.lanes(32), kind)

    def step(_: Value, sums: list[Value]) -> list[Value]:
        return [code.fma(x, y, s) for s in sums]

    initial = [constant(kind, float(i)) for i in range(_accumulators(target))]
    sums = code.carry(0, steps, initial, step)
    total = sums[0]
    for other in sums[1:]:
        total = code.fadd(total, other)
    code.write(total, place, 2 * target.lanes(32))
    code.done()


def _write_triad(module: ir.Module, target: Target) -> None:
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
