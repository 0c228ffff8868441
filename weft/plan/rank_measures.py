"""The benchmarks that `calibration.measure` runs in every rank: all-reduces, products, convolutions and memory sweeps, with the other ranks
busy or idle.

The clock of a core, and what other programs and virtual machines take, change within seconds. Benchmarks are therefore timed in short
windows that take turns, round after round: a slow second is part of all figures, with the other ranks and without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ..mesh.mesh import Mesh
from ..ops.collective import all_reduce, barrier
from ..ops.conv import conv, conv_transpose
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
CHANNELS, PIXELS, IMAGES = 128, 16, 8  # of a 3x3 convolution: about twice as long as the products
Points = tuple[tuple[float, float], ...]  # bytes and seconds
Join = Callable[[Tensor], Tensor]  # a barrier between ranks
_meshes: dict[int, Mesh] = {}


@dataclass(frozen=True)
class AloneMeasures:
    """The times of one rank while the others are idle."""

    products: float
    convolutions: float
    sweeps: Points  # by bytes

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> AloneMeasures:
        return cls(known["products"], known["convolutions"], _points(known["sweeps"]))


@dataclass(frozen=True)
class RankMeasures:
    """Measurements with one number of ranks, in seconds: the times of the slowest rank, and those of one rank alone, in turns with them."""

    all_reduce: Points  # by bytes
    products: float
    convolutions: float
    sweeps: Points  # by bytes
    alone: AloneMeasures | None = None

    @property
    def line(self) -> AlphaBeta:
        """Latency and bandwidth of the all-reduce: the line with the smallest relative error.

        >>> RankMeasures(((1e3, 2e-6), (1e6, 1.001e-3)), 0.0, 0.0, ()).line.latency < 1.1e-6
        True
        """
        sizes, times = (np.array(column) for column in zip(*self.all_reduce, strict=True))
        rows = np.stack([1 / times, sizes / times], axis=1)
        latency, per_byte = np.linalg.lstsq(rows, np.ones(len(times)), rcond=None)[0]
        if latency <= 0 or per_byte <= 0:  # too noisy for a fit: use the end points
            latency, per_byte = times[0], times[-1] / sizes[-1]
        return AlphaBeta(float(latency), 1 / float(per_byte))

    def to_dict(self) -> dict[str, object]:
        return vars(self) | {"alone": self.alone and vars(self.alone)}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> RankMeasures:
        alone = known["alone"] and AloneMeasures.from_dict(known["alone"])
        return cls(
            _points(known["all_reduce"]), known["products"], known["convolutions"], _points(known["sweeps"]), alone
        )


def _points(rows: Sequence[Sequence[float]]) -> Points:
    return tuple((float(x), float(y)) for x, y in rows)


def slowest(parts: Sequence[RankMeasures]) -> RankMeasures:
    """The measurements of all ranks: the times of the slowest, and those of rank 0 alone.

    >>> alone = AloneMeasures(1.0, 2.0, ((64.0, 0.1),))
    >>> slowest([RankMeasures((), 1.5, 2.5, ((64.0, 0.3),), alone), RankMeasures((), 1.25, 3.0, ((64.0, 0.5),))])
    RankMeasures(all_reduce=(), products=1.5, convolutions=3.0, sweeps=((64.0, 0.5),), alone=AloneMeasures(products=1.0, convolutions=2.0, sweeps=((64.0, 0.1),)))
    """

    def points(columns: Sequence[Points]) -> Points:
        return tuple((rows[0][0], max(seconds for _, seconds in rows)) for rows in zip(*columns, strict=True))

    reduced, swept = (points([getattr(part, name) for part in parts]) for name in ("all_reduce", "sweeps"))
    products, convolutions = max(part.products for part in parts), max(part.convolutions for part in parts)
    return RankMeasures(reduced, products, convolutions, swept, parts[0].alone)


def measure_rank(ranks: int, sizes: Sequence[int], sweeps: Sequence[int], rounds: int = ROUNDS) -> RankMeasures:
    """Runs in every rank: all benchmarks, in `rounds` rounds."""
    benchmarks = RankBenchmarks(ranks, sizes, sweeps)
    for _ in range(rounds):
        benchmarks.add()
    return benchmarks.measures()


class RankBenchmarks:
    """The benchmarks of a rank, compiled: all-reduces by bytes, products, convolutions, and sweeps by bytes.

    Rank 0 also measures those that communicate nothing while the other ranks are idle.
    """

    def __init__(self, ranks: int, sizes: Sequence[int], sweeps: Sequence[int]) -> None:
        is_first = mesh_of(ranks).index(AXIS) == 0
        self._reduces = {size: _all_reduces(size) for size in sizes} if ranks > 1 else {}
        self._together = _Computations(sweeps, _together)
        self._alone = _Computations(sweeps, _itself) if ranks > 1 and is_first else None
        self._empty = Windows(jit(lambda x: x + 1), asarray(np.zeros(1, np.float32)), join=_together)

    def add(self) -> None:
        """Run one round: a window of each benchmark. All ranks run it together."""
        for windows in (self._empty, *self._reduces.values()):
            windows.add()
        for windows, beside in zip_longest(self._together.all, self._alone.all if self._alone else ()):
            if beside:
                beside.add()
            barrier(AXIS)
            windows.add()

    def measures(self, last: int | None = None) -> RankMeasures:
        """The results of all rounds, or of the `last` ones."""
        empty = self._empty.seconds(last)
        reduced = tuple((float(size), _one(size, one.seconds(last), empty)) for size, one in self._reduces.items())
        alone = None if self._alone is None else self._alone.times(last)
        return RankMeasures(reduced, **vars(self._together.times(last)), alone=alone)


class _Computations:
    """The benchmarks that communicate nothing: products, convolutions and sweeps. `join` ends each."""

    def __init__(self, sweeps: Sequence[int], join: Join) -> None:
        self.products, self.convolutions = _products(join), _convolutions(join)
        self.sweeps = {size: _sweep(size, join) for size in sweeps}
        self.all = (self.products, self.convolutions, *self.sweeps.values())

    def times(self, last: int | None) -> AloneMeasures:
        sweeps = tuple((float(size), windows.seconds(last)) for size, windows in self.sweeps.items())
        return AloneMeasures(self.products.seconds(last), self.convolutions.seconds(last), sweeps)


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

    def seconds(self, last: int | None = None) -> float:
        """Seconds per call: the lower quartile of all windows, or of the `last` ones."""
        return float(np.quantile(self.found[-last:] if last else self.found, 0.25))

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


def _convolutions(join: Join) -> Windows:
    """A convolution and its data gradient, followed by a small all-reduce."""

    def chain(x: Tensor, w: Tensor) -> Tensor:
        return join(conv_transpose(conv(x, w, padding=1), w, padding=1)[0, 0, 0])

    images = np.ones((IMAGES, CHANNELS, PIXELS, PIXELS), np.float32)
    same = np.zeros((CHANNELS, CHANNELS, 3, 3), np.float32)
    same[:, :, 1, 1] = np.eye(CHANNELS)
    return Windows(jit(chain), asarray(images), asarray(same), join=join)


def _sweep(nbytes: int, join: Join) -> Windows:
    """Read and write `nbytes` bytes in place, like an update of parameters, followed by a barrier."""
    state = parameter(np.ones(nbytes // 4, np.float32))

    def update() -> Tensor:
        last = join(state[:1])
        state.assign(state * 0.5 + 0.25)
        return last

    return Windows(jit(update), join=join)
