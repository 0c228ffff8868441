"""Data about compiled programs and devices, the same for every device: memory, times, roofline, health."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..records import dataclass

if TYPE_CHECKING:
    from ..compiler.ir.program import Call, KernelProgram
    from ..graph.node import Node


@dataclass(frozen=True)
class Facts:
    """The bytes of a program that are live during a run, those that persist between runs, those that are computed twice to save memory, and
    the workspace that libraries take."""

    arena: int
    kept: int
    recomputed: int
    workspace: int = 0


@dataclass(frozen=True)
class CallTime:
    """A call of a program, and how long it took."""

    number: int
    call: Call
    seconds: float
    waiting: float = 0.0  # the share of the threads' time spent waiting for other threads


@dataclass(frozen=True)
class ModelledStage:
    """A stage of a program on a modelled machine, which does not run the compiler's kernels: its time and work there."""

    name: str
    seconds: float
    flops: int
    nbytes: int  # read and written outside of the chip
    least: float  # seconds at the roofline
    limit: str  # what bounds it: compute, memory or waiting
    format: str
    nodes: tuple[tuple[Node, float], ...]  # that it computes, and the work of each
    live: int = 0  # bytes on the chip while it runs
    persistent: int = 0  # bytes of weights among `nbytes`


@dataclass(frozen=True)
class Profile:
    """A program, and the time of each of its calls: the median of some runs. Reading the clock takes time: see `overhead`.

    A modelled machine has `stages` instead of calls.
    """

    program: KernelProgram
    calls: list[CallTime]
    runs: int
    plain: float = 0.0  # seconds of a run without timestamps; 0: not measured
    timed: float = 0.0  # of one with it
    stages: tuple[ModelledStage, ...] = ()

    @property
    def overhead(self) -> float | None:
        """The share of time that reading the clock adds to a run; None if it was not measured."""
        return self.timed / self.plain - 1.0 if self.plain else None


class Roofline(Protocol):
    """The peak rates of a device. A dataclass whose text names them."""

    @property
    def bandwidth(self) -> float:
        """Bytes read and written."""

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        """The least time for this work on elements of this size, in seconds."""


@dataclass(frozen=True)
class GpuRoof:
    """The peak rates of a GPU: products in 16 bits, in TF32 and in float32, and memory bandwidth."""

    half: float
    tf32: float
    single: float
    bandwidth: float
    with_tf32: bool = False  # whether the program may round the operands of products in float32

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        """The least time for this work on elements of this size, in seconds."""
        rate = self.half if itemsize <= 2 else (self.tf32 if self.with_tf32 else self.single) / max(1, itemsize // 4)
        return max(flops / rate, nbytes / self.bandwidth)

    def __str__(self) -> str:
        rates = f"{self.half / 1e12:.0f} TFLOP/s in 16 bits, {self.tf32 / 1e12:.0f} in TF32, {self.single / 1e12:.0f} in float32"
        return f"{rates}, {self.bandwidth / 1e12:.2f} TB/s"


@dataclass(frozen=True)
class Health:
    """The state of a device at one moment; None for values that it does not report."""

    temperature: int | None  # degrees Celsius
    power: float | None  # watts
    power_limit: float | None
    busy: int | None  # percent of the last sampling period in which a kernel ran
    others: int | None  # bytes of its memory that other processes hold

    def __str__(self) -> str:
        parts = []
        if self.temperature is not None:
            parts.append(f"{self.temperature} degrees Celsius")
        if self.power is not None:
            limit = "" if self.power_limit is None else f" of {self.power_limit:.0f}"
            parts.append(f"{self.power:.0f}{limit} W")
        if self.busy is not None:
            parts.append(f"{self.busy} % busy")
        if self.others is not None:
            parts.append(f"other processes hold {self.others / 2**30:.1f} GiB")
        return ", ".join(parts)
