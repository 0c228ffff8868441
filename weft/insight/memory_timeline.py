"""`weft.insight.memory_timeline`: the memory of a step, kernel by kernel, and the live values at its peak.

    print(weft.insight.memory_timeline(step, x, y))

The step is planned, not run: these are the bytes that the compiled program will use, before anything is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from typing import Any

from ..records import dataclass
from ..tracing.jit import Jit, jit
from .memory_plot import timeline_svg
from .memory_text import timeline_text
from .memory_values import KINDS, LiveValue, StepKernel, arena_values, call_values, live_bytes, step_kernels


@dataclass(frozen=True)
class MemoryTimeline:
    """A memory timeline; see the top of this file. `print` it, draw it with `svg`, or read `values`, `live` and `peak`."""

    kernels: tuple[StepKernel, ...]
    values: tuple[LiveValue, ...]
    arena: int  # bytes of the memory that values share: their peak, and fragmentation
    where: str  # the device that it is planned for

    @cached_property
    def live(self) -> dict[str, list[int]]:
        """The live bytes of each kind while each kernel runs."""
        return live_bytes(self.values, max(1, len(self.kernels)))

    @cached_property
    def totals(self) -> list[int]:
        """All live bytes while each kernel runs."""
        return [sum(counts) for counts in zip(*self.live.values(), strict=True)]

    @property
    def peak(self) -> int:
        """The maximum of live bytes."""
        return max(self.totals)

    @property
    def peak_kernel(self) -> int:
        """The kernel at the peak."""
        return self.totals.index(self.peak)

    @property
    def allocated(self) -> int:
        """The bytes that a call allocates: the peak, and the fragmentation of the arena."""
        constant = sum(value.nbytes for value in self.values if not value.in_arena)
        return constant + self.arena

    def alive(self, kernel: int) -> list[LiveValue]:
        """The values in memory while a kernel runs, the largest first."""
        return sorted((v for v in self.values if v.first <= kernel <= v.last), key=lambda v: -v.nbytes)

    def largest(self, most: int = 10) -> list[LiveValue]:
        """The largest values of the whole step."""
        return sorted(self.values, key=lambda v: (-v.nbytes, v.first))[:most]

    def at_peak(self) -> dict[str, int]:
        """The bytes of each kind at the peak."""
        return {kind: self.live[kind][self.peak_kernel] for kind in KINDS}

    def svg(self) -> str:
        """The plot: memory over the kernels of the step, and the largest lifetimes below."""
        return timeline_svg(self)

    def to_json(self) -> str:
        """Everything as JSON."""
        known = {
            "where": self.where,
            "planned": True,
            "peak": self.peak,
            "peak_kernel": self.peak_kernel,
            "at_peak": self.at_peak(),
            "allocated": self.allocated,
            "arena": self.arena,
            "kernels": [asdict(one) for one in self.kernels],
            "live": self.live,
            "values": [asdict(value) for value in self.values],
        }
        return json.dumps(known, indent=1)

    def __str__(self) -> str:
        return timeline_text(self)


def memory_timeline(function: Callable[..., Any], *args: Any, **kwargs: Any) -> MemoryTimeline:
    """The memory timeline of one call of a function, such as a training step. Nothing is run, and no state changes.

    >>> import weft
    >>> from weft import nn
    >>> found = memory_timeline(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), weft.ones((3, 4)))
    >>> found.at_peak()["parameters"] == 4 * (4 * 8 + 8 + 8 * 2 + 2)
    True
    >>> found.at_peak()["inputs and results"] == 4 * (3 * 4 + 3 * 2)
    True
    """
    compiled = function if isinstance(function, Jit) else jit(function)
    traced, program = compiled.plan(*args, **kwargs)
    values = (*call_values(traced, program), *arena_values(program))
    return MemoryTimeline(step_kernels(program), values, program.memory.arena, str(traced.device))
