"""The benchmarks that `calibration.measure` runs in every rank: all-reduces, products and memory sweeps, with the other ranks busy or idle."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..mesh.mesh import Mesh
from ..ops.collective import all_reduce
from ..ops.convert import asarray, parameter
from ..records import dataclass
from ..tensor import Tensor
from ..tracing.jit import jit
from .collectives import AlphaBeta

AXIS = "data"
WINDOWS = 9  # timing windows; the lower quartile counts, since other programs disturb some of them
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
    """Measurements with one number of ranks. Times are those of the slowest rank, in seconds.

    Clock rates change from minute to minute, so the times of a single rank are measured right before and after.
    """

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


def measure_rank(ranks: int, sizes: list[int], sweeps: list[int]) -> RankMeasures:
    """Measure an all-reduce by bytes, products, and sweeps by bytes, in seconds."""
    mesh_of(ranks)
    reduced = tuple((float(size), _all_reduce(size)) for size in sizes) if ranks > 1 else ()
    return RankMeasures(reduced, _products(), tuple((float(size), _sweep(size)) for size in sweeps))


def measure_alone(ranks: int, sweeps: list[int]) -> AloneMeasures | None:
    """The same without all-reduces in rank 0; the others are idle."""
    if mesh_of(ranks).index(AXIS) != 0:
        return None
    return AloneMeasures(_products(_itself), tuple((float(size), _sweep(size, _itself)) for size in sweeps))


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


def _all_reduce(nbytes: int) -> float:
    """The time of an all-reduce of zeros, whose sums stay zero."""
    chain = 1 if nbytes >= LARGE else CHAIN

    def several(x: Tensor) -> Tensor:
        for _ in range(chain):
            x = all_reduce(x, AXIS)
        return x[:1]  # a large result would allocate memory in each call, which a step does not

    x = asarray(np.zeros(max(1, nbytes // 4), np.float32))
    call = window_seconds(jit(several), x)
    empty = window_seconds(jit(lambda x: x + 1), asarray(np.zeros(1, np.float32)))
    return max(1e-9, call - (empty if chain > 1 else 0.0)) / chain


def _products(join: Join = _together) -> float:
    """The time of a chain of products followed by a small all-reduce, as in a step: all ranks wait for the slowest."""

    def chain(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(PRODUCTS):
            x = x @ w
        return join(x[:1])

    square = np.eye(PRODUCT, dtype=np.float32)
    return window_seconds(jit(chain), asarray(square), asarray(square), join=join)


def _sweep(nbytes: int, join: Join = _together) -> float:
    """The time to read and write `nbytes` bytes in place, like an update of parameters, followed by a barrier."""
    state = parameter(np.ones(nbytes // 4, np.float32))

    def update() -> Tensor:
        last = join(state[:1])
        state.assign(state * 0.5 + 0.25)
        return last

    return window_seconds(jit(update), join=join)


def window_seconds(function: Callable[..., Any], *args: Any, join: Join = _together) -> float:
    """Seconds per call: the lower quartile of windows of several calls. Ranks agree on the number of calls, since they run collectives."""
    for _ in range(3):
        function(*args)
    begin = time.perf_counter()
    for _ in range(2):
        function(*args)
    once = (time.perf_counter() - begin) / 2
    slowest = float(join(asarray(np.float32(once))).numpy())
    calls = int(min(1000, max(1, SECONDS / max(slowest, 1e-7))))
    found = []
    for _ in range(WINDOWS):
        begin = time.perf_counter()
        for _ in range(calls):
            function(*args)
        found.append((time.perf_counter() - begin) / calls)
    return statistics.quantiles(found, n=4)[0]
