"""The overheads of kernels besides their work, estimated from profiles: what starting a kernel takes, and filling the machine with it."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Iterator, Sequence

from ..records import dataclass
from .layer_profile import KernelProfile
from .machines import WIDER
from .profile import ProgramProfile

LONGEST = 5e-5  # maximum seconds of a launch: a longer kernel is slow for other reasons
LITTLE = 0.25  # fraction of a kernel's time: if its roofline time is less, the rest is launch overhead
SHORTEST = 0.1  # fraction of the launches that takes no longer than the launch overhead
SIZES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}


@dataclass(frozen=True)
class StartCost:
    """The overheads of kernels on a machine, besides their work."""

    launch: float  # seconds of each launch
    fill: float  # seconds of each kernel

    @classmethod
    def of(cls, profiles: Sequence[ProgramProfile]) -> StartCost:
        """Estimated from launch-bound kernels: the launch overhead is that of the shortest tenth of all launches, the fill time is the difference to
        the median kernel.

        A launch is the mean over the steps of a loop, or over two kernels in a row: a kernel starts while the one before still runs, so that
        only the sum of their times is well defined. (Events and prefixes of the program divide it differently.)
        """
        overheads = [seconds for found in profiles for seconds, _ in _overheads(found) if seconds is not None]
        launches = sorted(launch for found in profiles for launch in _launches(found))
        launches = launches or [(seconds, 1) for seconds in sorted(overheads)]
        if not launches:
            return cls(0.0, 0.0)
        counts = list(itertools.accumulate(starts for _, starts in launches))
        launch = launches[bisect.bisect_left(counts, SHORTEST * counts[-1])][0]
        return cls(launch, max(0.0, statistics.median(overheads) - launch))

    def seconds(self, kernel: KernelProfile) -> float:
        return kernel.starts * self.launch + self.fill


def roof_seconds(found: ProgramProfile, kernel: KernelProfile) -> float:
    """The roofline time here, by the same formula as on other machines. (`kernel.least` adds up phases that run in sequence.)"""
    return found.explanation.roof.seconds(kernel.flops, kernel.nbytes, itemsize=SIZES[format_of(kernel)])


def format_of(kernel: KernelProfile) -> str:
    """The format of a kernel in terms of machines: bytes are int8, and wider integers count as float32, which is as wide as most."""
    if kernel.format == "uint8":
        return "int8"
    return kernel.format if kernel.format in WIDER else "float32"


def _overheads(found: ProgramProfile) -> list[tuple[float | None, int]]:
    """The overhead of each kernel's start and the number of starts, in the order of the program; None if it is not launch-bound."""
    every: list[tuple[float | None, int]] = []
    for kernel in found.kernels:
        work, limit = roof_seconds(found, kernel), LONGEST * kernel.starts
        is_bound = kernel.starts and work < LITTLE * kernel.seconds < LITTLE * limit
        every.append(((kernel.seconds - work) / kernel.starts if is_bound else None, kernel.starts))
    return every


def _launches(found: ProgramProfile) -> Iterator[tuple[float, int]]:
    """Mean overheads of launches, and how many launches each is the mean of."""
    every = _overheads(found)
    yield from ((seconds, starts) for seconds, starts in every if seconds is not None and starts > 1)
    for (one, starts), (other, others) in itertools.pairwise(every):
        if one is not None and other is not None and starts == others == 1:
            yield (one + other) / 2, 1
