"""The benchmarks that `calibration.measure` runs in every rank: all-reduces, products and memory sweeps, with the other ranks busy or idle.

The clock of a core, and what other programs and virtual machines take, change within seconds. Benchmarks are therefore timed in short
windows that take turns, round after round: a slow second is part of all figures, with the other ranks and without them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..mesh.mesh import Mesh
from ..ops.collective import all_reduce, barrier
from ..ops.convert import asarray, parameter
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from .collectives import AlphaBeta

AXIS = "data"
ROUNDS = 9  # timing windows of a benchmark; the lower quartile counts, since other programs disturb some of them
SECONDS = 0.02  # approximate length of a window
CHAIN = 8  # small all-reduces in one program, to amortize launch overhead
LARGE = 1 << 20  # bytes from which one all-reduce is enough
PRODUCT = 256  # rows and columns: all operands fit into the caches of a core
PRODUCTS = 8  # in one program: about as long as a step of a small network
Points = tuple[tuple[float, float], ...]  # bytes and seconds
Join = Callable[[Tensor], Tensor]  # a barrier between ranks
_meshes: dict[int, Mesh] = {}


@dataclass(frozen=True)
class AloneMeasures:
    """The times of one rank while the others are idle."""

    products: float
    sweeps: Points  # by bytes


@dataclass(frozen=True)
class RankMeasures:
    """Measurements with one number of ranks, in seconds: the times of the slowest rank, and those of one rank alone, in turns with them."""

    all_reduce: Points  # by bytes
    products: float
    sweeps: Points  # by bytes
    alone: AloneMeasures | None = None

    @property
    def line(self) -> AlphaBeta:
        """Latency and bandwidth of the all-reduce: the line with the smallest relative error.

        >>> RankMeasures(((1e3, 2e-6), (1e6, 1.001e-3)), 0.0, ()).line.latency < 1.1e-6
        True
        """
        sizes, times = (np.array(column) for column in zip(*self.all_reduce, strict=True))
        rows = np.stack([1 / times, sizes / times], axis=1)
        latency, per_byte = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0]
        if latency <= 0 or per_byte <= 0:  # too noisy for a fit: use the end points
            latency, per_byte = times[0], times[-1] / sizes[-1]
        return AlphaBeta(float(latency), 1 / float(per_byte))


def measure_rank(ranks: int, sizes: Sequence[int], sweeps: Sequence[int], rounds: int = ROUNDS) -> RankMeasures:
    """Measure all-reduces by bytes, products, and sweeps by bytes; rank 0 also measures the last two alone."""
    is_first = mesh_of(ranks).index(AXIS) == 0
    reduces = {size: _all_reduces(size) for size in sizes} if ranks > 1 else {}
    together = _Computations(sweeps, _together)
    alone = _Computations(sweeps, _itself) if ranks > 1 and is_first else None
    empty = Windows(jit(lambda x: x + 1), asarray(np.zeros(1, np.float32)), join=_together)
    for _ in range(rounds):
        for windows in (empty, *reduces.values()):
            windows.add()
        for windows, beside in zip_longest(together.all, alone.all if alone else ()):
            if beside:
                beside.add()
            barrier(AXIS)
            windows.add()
    reduced = tuple((float(size), _one(size, windows.seconds, empty.seconds)) for size, windows in reduces.items())
    return RankMeasures(reduced, **vars(together.times), alone=None if alone is None else alone.times)


class _Computations:
    """The benchmarks that communicate nothing: products and sweeps. `join` ends each."""

    def __init__(self, sweeps: Sequence[int], join: Join) -> None:
        self.products = _products(join)
        self.sweeps = {size: _sweep(size, join) for size in sweeps}
        self.all = (self.products, *self.sweeps.values())

    @property
    def times(self) -> AloneMeasures:
        sweeps = tuple((float(size), windows.seconds) for size, windows in self.sweeps.items())
        return AloneMeasures(self.products.seconds, sweeps)


class Windows:
    """A function that is timed in windows of about SECONDS. Ranks agree on the number of calls in a window, since they run collectives."""

    def __init__(self, function: Callable[..., Any], *args: Any, join: Join) -> None:
        self.function, self.args, self.found = function, args, list[float]()
        self._run(3)
        once = self._run(2)
        slowest = float(join(asarray(np.float32(once))).numpy())
        self.calls = int(min(1000, max(1, SECONDS / max(slowest, 1e-7))))

    def add(self) -> None:
        """Time one window."""
        self.found.append(self._run(self.calls))

    @property
    def seconds(self) -> float:
        """Seconds per call."""
        return statistics.quantiles(self.found, n=4)[0]

    def _run(self, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            self.function(*self.args)
        return (time.perf_counter() - begin) / calls


def _together(x: Tensor) -> Tensor:
    """A barrier of all ranks: an all-reduce of the maximum."""
    return all_reduce(x, AXIS, "max")


def _itself(x: Tensor) -> Tensor:
    return x


def mesh_of(ranks: int) -> Mesh:
    """The mesh of this process, created once."""
    if ranks not in _meshes:
        _meshes[ranks] = Mesh(**{AXIS: ranks})
    return _meshes[ranks]


def _all_reduces(nbytes: int) -> Windows:
    """All-reduces of zeros, whose sums stay zero."""

    def several(x: Tensor) -> Tensor:
        for _ in range(_chain(nbytes)):
            x = all_reduce(x, AXIS)
        return x[:1]  # a large result would allocate memory in each call, which a step does not

    return Windows(jit(several), asarray(np.zeros(max(1, nbytes // 4), np.float32)), join=_together)


def _chain(nbytes: int) -> int:
    return 1 if nbytes >= LARGE else CHAIN


def _one(nbytes: int, call: float, empty: float) -> float:
    """The time of one all-reduce of a call."""
    chain = _chain(nbytes)
    return max(1e-9, call - (empty if chain > 1 else 0.0)) / chain


def _products(join: Join) -> Windows:
    """A chain of products followed by a small all-reduce, as in a step: all ranks wait for the slowest."""

    def chain(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(PRODUCTS):
            x = x @ w
        return join(x[:1])

    square = np.eye(PRODUCT, dtype=np.float32)
    return Windows(jit(chain), asarray(square), asarray(square), join=join)


def _sweep(nbytes: int, join: Join) -> Windows:
    """Read and write `nbytes` bytes in place, like an update of parameters, followed by a barrier."""
    state = parameter(np.ones(nbytes // 4, np.float32))

    def update() -> Tensor:
        last = join(state[:1])
        state.assign(state * 0.5 + 0.25)
        return last

    return Windows(jit(update), join=join)
