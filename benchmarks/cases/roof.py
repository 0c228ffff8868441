"""What the machine can do at most: fused multiply-adds that touch no memory, and reading and copying large arrays."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.cpu.engine import load
from weft.compiler.cpu.ir_builder import F32, I64, PTR, Code, constant, new_module, vector
from weft.compiler.cpu.target import host

ELEMENTS = 1 << 24  # of each array, 64 MiB: larger than caches
UNROLL = 8  # vectors in one step of a loop over memory


@dataclass(frozen=True)
class Roof:
    """Operations and bytes a second, by all threads together."""

    flops: float
    read: float
    triad: float

    def least_seconds(self, layers: Sequence[tuple[float, float]]) -> float:
        """The least time for layers one after another, each bound by arithmetic or by reading memory."""
        return sum(max(flops / self.flops, moved / self.read) for flops, moved in layers)


def measure(threads: int) -> Roof:
    """The roof of this machine with so many threads; about a second."""
    code = load(_module())
    fma = code.function("fma_loop", [ctypes.c_int64, ctypes.c_void_p])
    read = code.function("read_loop", [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p])
    triad = code.function("triad_loop", [ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p])
    share = ELEMENTS // threads // (UNROLL * 16) * (UNROLL * 16)
    arrays = [(np.ones(share, np.float32), np.ones(2 * share, np.float32)) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        flops = sum(pool.map(lambda a: _best_alone(fma, a[0].ctypes.data), arrays))
        best_read = share * threads * 4.0 / _best_together(pool, read, share, arrays)
        best_triad = share * threads * 12.0 / _best_together(pool, triad, share, arrays)
    return Roof(flops, best_read, best_triad)


def _best_alone(fma: Any, place: int, tries: int = 40, steps: int = 300_000) -> float:
    """The most operations a second of one thread, while the others do the same."""
    seconds = []
    for _ in range(tries):
        start = time.perf_counter()
        fma(steps, place)
        seconds.append(time.perf_counter() - start)
    return steps * _accumulators() * host().lanes(32) * 2.0 / min(seconds)


def _best_together(pool: ThreadPoolExecutor, function: Any, count: int, arrays: Sequence[Any]) -> float:
    """The least seconds in which all threads are done."""
    seconds = []
    for _ in range(12):
        start = time.perf_counter()
        list(pool.map(lambda a: function(count, a[0].ctypes.data, a[1].ctypes.data), arrays))
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _accumulators() -> int:
    return 24 if host().registers >= 32 else 12  # enough to hide the latency of an fma, with room for its operands


def _module() -> Any:
    module = new_module("roof")
    lanes = host().lanes(32)
    kind = vector(F32, lanes)
    _fma_loop(module, kind)
    _read_loop(module, kind, lanes)
    _triad_loop(module, kind, lanes)
    return module


def _fma_loop(module: Any, kind: Any) -> None:
    """count times: a = a + x * y for many a."""
    code = Code.begin(module, "fma_loop", [I64, PTR])
    count, place = code.arguments
    x, y = code.read(place, 0, kind), code.read(place, 64, kind)
    zeros = [constant(kind, float(i)) for i in range(_accumulators())]
    found = code.loop_carrying(0, count, zeros, lambda i, values: [code.fma(x, y, v) for v in values])
    _keep(code, found, place)


def _read_loop(module: Any, kind: Any, lanes: int) -> None:
    """The sum of an array."""
    code = Code.begin(module, "read_loop", [I64, PTR, PTR])
    count, place, source = code.arguments

    def step(i: Any, sums: list[Any]) -> list[Any]:
        return [code.fadd(s, code.read(source, code.plus(i, n * lanes), kind)) for n, s in enumerate(sums)]

    sums = code.loop_carrying(0, count, [constant(kind, 0.0)] * UNROLL, step, UNROLL * lanes)
    _keep(code, sums, place)


def _triad_loop(module: Any, kind: Any, lanes: int) -> None:
    """a = b + 3 c, where b and c stand one behind the other."""
    code = Code.begin(module, "triad_loop", [I64, PTR, PTR])
    count, target, source = code.arguments
    second = code.at(source, count, F32)
    with code.loop(0, count, UNROLL * lanes) as i:
        for n in range(UNROLL):
            at = code.plus(i, n * lanes)
            value = code.fma(code.read(second, at, kind), constant(kind, 3.0), code.read(source, at, kind))
            code.write(value, target, at)
    code.done()


def _keep(code: Code, values: Sequence[Any], place: Any) -> None:
    """Write the sum of values, so that nothing of them is dead."""
    total = values[0]
    for value in values[1:]:
        total = code.fadd(total, value)
    code.write(total, place, 0)
    code.done()
