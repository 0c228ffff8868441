"""What `calibration.measure` runs in every rank: all-reduces, products and sweeps over memory, while all others do the same or nothing."""

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
WINDOWS = 9  # the lower quartile of so many: other programs disturb some of them
SECONDS = 0.02  # of a window, about
CHAIN = 8  # small all-reduces in one program, so that the call of the program does not count
LARGE = 1 << 20  # bytes from which on one all-reduce is enough
PRODUCT = 256  # rows and columns: all operands in the caches of a core
PRODUCTS = 8  # in one program: about as long as a step of a small network
Points = tuple[tuple[float, float], ...]  # bytes and seconds
Join = Callable[[Tensor], Tensor]  # how ranks wait for each other
_meshes: dict[int, Mesh] = {}


@dataclass(frozen=True)
class AloneMeasures:
    """What one rank takes while the others do nothing."""

    products: float
    sweeps: Points  # by bytes


@dataclass(frozen=True)
class RankMeasures:
    """What was measured with one number of ranks. Seconds are those of the slowest rank.

    The clock of a machine changes from minute to minute, so what one rank takes alone is measured right before and after.
    """

    all_reduce: Points  # by bytes
    products: float
    sweeps: Points  # by bytes
    alone: AloneMeasures | None = None

    @property
    def line(self) -> AlphaBeta:
        """Latency and bandwidth of the all-reduce: the straight line that is off by the least share.

        >>> RankMeasures(((1e3, 2e-6), (1e6, 1.001e-3)), 0.0, ()).line.latency < 1.1e-6
        True
        """
        sizes, times = (np.array(column) for column in zip(*self.all_reduce, strict=True))
        rows = np.stack([1 / times, sizes / times], axis=1)
        latency, per_byte = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0]
        if latency <= 0 or per_byte <= 0:  # too noisy for a line: its ends
            latency, per_byte = times[0], times[-1] / sizes[-1]
        return AlphaBeta(float(latency), 1 / float(per_byte))


def measure_rank(ranks: int, sizes: list[int], sweeps: list[int]) -> RankMeasures:
    """Seconds of an all-reduce by bytes, of products, and of sweeps by bytes."""
    mesh_of(ranks)
    reduced = tuple((float(size), _all_reduce(size)) for size in sizes) if ranks > 1 else ()
    return RankMeasures(reduced, _products(), tuple((float(size), _sweep(size)) for size in sweeps))


def measure_alone(ranks: int, sweeps: list[int]) -> AloneMeasures | None:
    """The same without all-reduces in rank 0; the others do nothing."""
    if mesh_of(ranks).index(AXIS) != 0:
        return None
    return AloneMeasures(_products(_itself), tuple((float(size), _sweep(size, _itself)) for size in sweeps))


def _together(x: Tensor) -> Tensor:
    """Wait for all ranks: the largest value."""
    return all_reduce(x, AXIS, "max")


def _itself(x: Tensor) -> Tensor:
    return x


def mesh_of(ranks: int) -> Mesh:
    """One mesh for each process."""
    if ranks not in _meshes:
        _meshes[ranks] = Mesh(**{AXIS: ranks})
    return _meshes[ranks]


def _all_reduce(nbytes: int) -> float:
    """Zeros, whose sums stay zeros."""
    chain = 1 if nbytes >= LARGE else CHAIN

    def several(x: Tensor) -> Tensor:
        for _ in range(chain):
            x = all_reduce(x, AXIS)
        return x[:1]  # a large result would be new memory in each call, which a step does not have

    x = asarray(np.zeros(max(1, nbytes // 4), np.float32))
    call = window_seconds(jit(several), x)
    empty = window_seconds(jit(lambda x: x + 1), asarray(np.zeros(1, np.float32)))
    return max(1e-9, call - (empty if chain > 1 else 0.0)) / chain


def _products(join: Join = _together) -> float:
    """A chain of products, and a small all-reduce behind it as in a step: all ranks wait for the slowest."""

    def chain(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(PRODUCTS):
            x = x @ w
        return join(x[:1])

    square = np.eye(PRODUCT, dtype=np.float32)
    return window_seconds(jit(chain), asarray(square), asarray(square), join=join)


def _sweep(nbytes: int, join: Join = _together) -> float:
    """Read so many bytes and write them, in place as parameters are updated; then wait for all ranks."""
    state = parameter(np.ones(nbytes // 4, np.float32))

    def update() -> Tensor:
        last = join(state[:1])
        state.assign(state * 0.5 + 0.25)
        return last

    return window_seconds(jit(update), join=join)


def window_seconds(function: Callable[..., Any], *args: Any, join: Join = _together) -> float:
    """Seconds of one call: the lower quartile of windows of several calls. Ranks agree on how many, since they run the same collectives."""
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
