"""Calibration of this machine as a cluster: ranks are processes that share its memory. Their mutual slowdown is measured and stored.

    measured = weft.plan.measure([1, 2, 4])      # a second or two for each number of ranks
    measured.save()
    weft.plan.here()                             # the latest measurement

For each number of ranks it holds the time of an all-reduce by size, and the slowdown when all ranks compute at once: products and
convolutions share clock rates, and cores with hyper-threading; sweeps over memory share caches and memory bandwidth. Two threads of a core
slow products down more than convolutions, because products alone saturate its FMA units.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from ..compiler.cpu.target import host
from ..compiler.host import usable_cores
from ..compiler.store import cache_folder
from ..errors import UserError
from ..insight.layer_profile import KernelProfile
from ..insight.profile import ProgramProfile
from ..parallel.ranks import RankPool
from ..records import dataclass
from .clusters import HERE
from .collectives import CollectiveCost, RankGroup
from .rank_measures import ROUNDS, AloneMeasures, RankMeasures, measure_rank, slowest
from .step_work import StepWork

FORMAT = 3
FILE = "plan-here.json"
SIZES = tuple(4**k << 10 for k in range(9))  # 1 KiB to 64 MiB
SWEEPS = tuple(1 << k for k in (17, 20, 22, 24, 26))


@dataclass(frozen=True)
class MeasuredCluster:
    """A measured cluster; see the top of this file."""

    measures: Mapping[int, RankMeasures]  # by number of ranks
    cpu: str
    cores: int
    memory_bytes: float

    name = HERE
    overlap = False  # a rank that communicates does not compute

    @property
    def title(self) -> str:
        return f"this machine: {self.cpu}, {self.cores} cores, ranks of one thread"

    @property
    def ranks_per_node(self) -> int:
        return self.cores

    def most_ranks(self) -> int | None:
        """One rank per core."""
        return self.cores

    def rank_memory(self, ranks: int) -> float | None:
        """An equal share of the memory, in bytes."""
        return self.memory_bytes / ranks

    def work(self, measured: StepWork, ranks: int, format: str | None = None) -> StepWork:
        """A step of one rank among `ranks`: its kernels are slower than those of a single rank."""
        if format is not None:
            raise UserError(
                "plan",
                f"format= is for described clusters; this machine computes in the format of the network, got format={format}.",
            )
        return measured.changed(
            lambda found: [self._slower(found, kernel, ranks) for kernel in found.kernels], self.title
        )

    def _slower(self, found: ProgramProfile, kernel: KernelProfile, ranks: int) -> KernelProfile:
        """Scale a kernel's time by the compute and memory slowdown, weighted by its compute and memory time at the roofline."""
        roof = found.explanation.roof
        compute, memory = roof.seconds(kernel.flops, 0.0), roof.seconds(0.0, kernel.nbytes)
        share = compute / (compute + memory) if compute + memory else 1.0
        computing = self.convolution_factor(ranks) if kernel.is_convolution else self.compute_factor(ranks)
        factor = share * computing + (1 - share) * self.memory_factor(ranks, kernel.nbytes / 2)
        return replace(kernel, seconds=factor * kernel.seconds)

    def compute_factor(self, ranks: int) -> float:
        """The slowdown of products when `ranks` ranks compute at once, relative to a single rank."""
        return self._slowdown(ranks, lambda m: (m.products, self._alone(m).products))

    def convolution_factor(self, ranks: int) -> float:
        """The slowdown of convolutions."""
        return self._slowdown(ranks, lambda m: (m.convolutions, self._alone(m).convolutions))

    def memory_factor(self, ranks: int, nbytes: float) -> float:
        """The slowdown of reading and writing `nbytes` bytes."""
        return self._slowdown(
            ranks, lambda m: (interpolated(m.sweeps, nbytes), interpolated(self._alone(m).sweeps, nbytes))
        )

    def _slowdown(self, ranks: int, times: Callable[[RankMeasures], tuple[float, float]]) -> float:
        """How much slower a benchmark is, given its times with all ranks and alone.

        Another rank makes no rank faster. Where fewer ranks were slowed down more, their neighbors on the machine were busy at that moment,
        so those measurements are averaged.
        """
        several = sorted((n, m) for n, m in self.measures.items() if n > 1)
        ratios = [max(1.0, (together - self._wait(m)) / alone) for _, m in several for together, alone in [times(m)]]
        points = [(1.0, 1.0), *zip((float(n) for n, _ in several), non_decreasing(ratios), strict=True)]
        return interpolated(points, float(min(ranks, points[-1][0])))

    def _wait(self, measures: RankMeasures) -> float:
        """The time of the small all-reduce after the benchmark."""
        return min((seconds for _, seconds in measures.all_reduce), default=0.0)

    def _alone(self, measures: RankMeasures) -> AloneMeasures | RankMeasures:
        """The times of a single rank, measured in turns with these."""
        return measures.alone or self.measures[1]

    def copy_seconds(self, nbytes: float, ranks: int) -> float:
        """The time to read or write `nbytes` bytes while other ranks do the same: gradients do not fit into the caches of a core."""
        return self._between(ranks, lambda m: interpolated(m.sweeps, nbytes / 2)) if nbytes else 0.0

    def all_reduce(self, group: RankGroup, nbytes: float) -> CollectiveCost:
        """The measured all-reduce, through shared memory."""
        if group.size == 1:
            return CollectiveCost(0.0, "none")
        return CollectiveCost(
            self._between(group.size, lambda m: interpolated(m.all_reduce, nbytes), least=2), "direct"
        )

    def half_all_reduce(self, group: RankGroup, nbytes: float) -> float:
        """A reduce-scatter or an all-gather: half of the copies of an all-reduce."""
        return self.all_reduce(group, nbytes).seconds / 2

    def send(self, nbytes: float, crosses_nodes: bool, sharing: int = 1) -> float:
        """A copy into shared memory and one out of it, as in an all-reduce between two ranks."""
        return self.all_reduce(RankGroup(2, 2), nbytes).seconds

    def _between(self, ranks: int, of: Callable[[RankMeasures], float], least: int = 1) -> float:
        """A quantity for a number of ranks: interpolated if that number was not measured, or that of the largest."""
        points = tuple((float(n), of(m)) for n, m in sorted(self.measures.items()) if n >= least)
        if not points:
            raise UserError(
                "plan",
                f"{ranks} ranks require a calibration with 2 or more ranks, got one with 1. Run weft plan --measure.",
            )
        return interpolated(points, float(ranks)) if ranks <= points[-1][0] else points[-1][1]

    def save(self, path: str | Path | None = None) -> Path:
        """Store it for later plans."""
        file = _file(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(self.to_dict(), indent=1), encoding="utf-8")
        return file

    def to_dict(self) -> dict[str, object]:
        measures = {str(n): m.to_dict() for n, m in self.measures.items()}
        return {"format": FORMAT, "cpu": self.cpu, "cores": self.cores, "memory_bytes": self.memory_bytes, "measures": measures}  # fmt: skip


def interpolated(points: Sequence[tuple[float, float]], at: float) -> float:
    """Log-log interpolation between the points; proportional beyond them.

    >>> round(interpolated([(1.0, 10.0), (100.0, 1000.0)], 10.0), 9)
    100.0
    >>> interpolated([(1.0, 10.0), (2.0, 20.0)], 0.1), interpolated([(1.0, 10.0), (2.0, 20.0)], 4.0)
    (10.0, 40.0)
    """
    places = [x for x, _ in points]
    if at <= places[0]:
        return points[0][1]
    if at >= places[-1]:
        return points[-1][1] * at / places[-1]
    (x0, y0), (x1, y1) = list(pairwise(points))[bisect_left(places, at) - 1]
    share = log(at / x0) / log(x1 / x0)
    return exp((1 - share) * log(y0) + share * log(y1))


def non_decreasing(values: Sequence[float]) -> list[float]:
    """Isotonic regression of positive values: those that are out of order are replaced by their geometric mean.

    >>> [round(x, 9) for x in non_decreasing([1.0, 4.0, 1.0, 3.0])]
    [1.0, 2.0, 2.0, 3.0]
    """
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([log(value)])
        while len(blocks) > 1 and mean(blocks[-2]) > mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    return [exp(mean(block)) for block in blocks for _ in block]


def measure(ranks: Sequence[int] | None = None, sizes: Sequence[int] = SIZES, sweeps: Sequence[int] = SWEEPS) -> MeasuredCluster:  # fmt: skip
    """Measure this machine with several numbers of single-threaded ranks: by default 1, 2, 4, ... up to its cores.

    >>> measure([1], sizes=[], sweeps=[1 << 17]).compute_factor(1)
    1.0
    """
    wanted = sorted({1, *(ranks or default_ranks(usable_cores()))})
    found = {n: _measured(n, sizes, sweeps) for n in wanted}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return MeasuredCluster(found, host().cpu, usable_cores(), memory)


def default_ranks(most: int) -> list[int]:
    """Powers of two, and the largest number.

    >>> default_ranks(6)
    [1, 2, 4, 6]
    """
    return sorted({*(2**k for k in range(most.bit_length()) if 2**k <= most), most})


def _measured(ranks: int, sizes: Sequence[int], sweeps: Sequence[int]) -> RankMeasures:
    with RankPool(ranks, threads=1) as pool:
        return measured_by(pool, ranks, sizes, sweeps)


def measured_by(
    pool: RankPool, ranks: int, sizes: Sequence[int], sweeps: Sequence[int], rounds: int = ROUNDS
) -> RankMeasures:
    """The measurements of all ranks of a pool."""
    return slowest(pool.run(measure_rank, ranks, list(sizes), list(sweeps), rounds))


def here(path: str | Path | None = None) -> MeasuredCluster:
    """The stored measurement of this machine; the error without one says how to measure."""
    file = _file(path)
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            "plan", f"this machine has not been measured, {file} does not exist. Run weft plan --measure."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError("plan", f"{file} cannot be read: {error}. Run weft plan --measure again.") from None
    found = told.get("format") if isinstance(told, dict) else None
    if found != FORMAT:
        raise UserError(
            "plan",
            f"a calibration of format {FORMAT} is required, {file} has format {found}. Run weft plan --measure again.",
        )
    try:
        return _from_dict(told)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError("plan", f"{file} is damaged: {error}. Run weft plan --measure again.") from None


def _from_dict(told: Mapping[str, Any]) -> MeasuredCluster:
    measures = {int(n): RankMeasures.from_dict(m) for n, m in told["measures"].items()}
    return MeasuredCluster(measures, told["cpu"], told["cores"], told["memory_bytes"])


def here_or_measured(ranks: Sequence[int], tell: Callable[[str], None] = lambda text: None) -> MeasuredCluster:
    """The stored measurement of this machine, if the number of cores is the same; else measures these numbers of ranks now, and stores it."""
    try:
        found = here()
        if found.cores == usable_cores() and len(found.measures) > 1:
            return found
    except UserError:
        pass
    tell("measuring all-reduces and how much ranks slow each other down, once for this machine")
    measured = measure(sorted({n for n in ranks if n <= usable_cores()} | {2}))
    if cache_folder() is not None:
        measured.save()
    return measured


def _file(path: str | Path | None) -> Path:
    if path is not None:
        return Path(path).expanduser()
    folder = cache_folder()
    if folder is None:
        raise UserError("plan", "a file for the calibration is required, since WEFT_CACHE=off, got none. Use calibration=FILE.json.")  # fmt: skip
    return folder / FILE
