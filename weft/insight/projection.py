"""Projects a measured program to another machine, from that machine's peak numbers.

    project(profile(step, x), machine("titan-x")).seconds

For each kernel

    time = max(operations / peak / e,  bytes / bandwidth / e) + starts x launch overhead + fill time

where e is the efficiency that the kernel reaches here: the roofline time on this machine (measured roof) as a fraction of
its time without these two overheads. The other machine is assumed to reach the same fraction of its own peak. `starts` is 1, or the number of
kernels of all steps of a scan, which run in sequence; on a GPU a start is a launch, on a CPU a barrier of the threads. The fill time is the
time that a kernel takes to give all units work and to wait for the last one. Three rules make the assumption reasonable:

- A kernel bound by launch overhead here says nothing about the machine: it gets the usual efficiency of programs that were measured on the
  other machine; if there are none, that of the rest of the program, or `USUAL` where all kernels are like that.
- Exceeding the compute roof by fewer operations (Winograd, FFT) carries over, unless a similar convolution that was measured on the other
  machine takes the direct algorithm, or the other way round: then the kernel gets the efficiency of that convolution. If there is no similar
  one and no fast one at all, it gets the usual efficiency. Exceeding the memory roof, from a cache, carries over only if the working set
  fits into the cache of the other machine.
- A kernel in a format that the other machine does not support runs in the wider one that it does.

Peaks are those of data sheets, of which programs reach 80 or 90 % at best, so projections are optimistic by about as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite

from ..records import dataclass
from .layer_profile import KernelProfile, LayerProfile, summed
from .machines import DescribedMachine
from .measured_convolutions import MeasuredConvolution, efficiency_there, is_fast
from .profile import ProgramProfile
from .start_cost import LITTLE, SIZES, StartCost, format_of, roof_seconds
from .table_reader import Figure

USUAL = 0.75  # fraction of the roof: the default efficiency of a program
NOTE = "kernels that take longer to start than to run"
FEW = 8  # launch overheads: longer kernels have significant work


@dataclass(frozen=True)
class Projection:
    """A program on a machine that is not available here. All times are projected, none is measured."""

    machine: DescribedMachine
    kernels: tuple[KernelProfile, ...]  # with projected times
    bounds: tuple[str, ...]  # what limits each: compute, memory or launch
    format: str | None  # of the float computations; None: unchanged

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    @cached_property
    def layers(self) -> tuple[LayerProfile, ...]:
        """Every layer with all of its phases."""
        return summed(self.kernels, lambda s: s if s.phase == "update" else s._replace(phase=""))

    @property
    def joules(self) -> float | None:
        """The energy at the machine's power limit."""
        return None if self.machine.power is None else self.machine.power.value * self.seconds


def project(found: ProgramProfile, machine: DescribedMachine, format: str | None = None) -> Projection:
    """Project a profile to another machine; `format` computes floats in another format there, such as float16.

    >>> import weft
    >>> from weft.insight import machine, profile
    >>> found = profile(weft.nn.Linear(64, 64), weft.ones((32, 64)))
    >>> slow, fast = (project(found, machine(name)) for name in ("tegra-x1", "titan-x"))
    >>> slow.seconds > 0 and fast.seconds <= slow.seconds
    True
    """
    if format is not None:
        machine.peak_for(format)  # raise errors before anything is computed
    start = StartCost.of([found])
    typical = machine.usual_efficiency or _usual_efficiency([found], start)
    pairs = [_projected(found, kernel, machine, format, typical, start) for kernel in found.kernels]
    return Projection(machine, tuple(kernel for kernel, _ in pairs), tuple(bound for _, bound in pairs), format)


def measured_machine(
    name: str, found: ProgramProfile | Sequence[ProgramProfile], kind: str = "cpu"
) -> DescribedMachine:
    """The machine that profiles were measured on, to project other profiles to it.

    It is described by its measured roof, its short kernels, and the efficiency of its convolutions and of kernels in general.

    >>> import weft
    >>> from weft.insight import profile
    >>> measured_machine("mine", profile(weft.nn.ReLU(), weft.ones(8))).peak["float32"].source
    'measured by the profile'
    """
    every = [found] if isinstance(found, ProgramProfile) else list(found)
    roof = every[0].explanation.roof
    rates = {"float32": roof.seconds(1e12, 0.0), "float64": roof.seconds(1e12, 0.0, itemsize=8)}
    if kind == "gpu":
        half = roof.seconds(1e12, 0.0, itemsize=2)
        rates |= {"float16": half, "bfloat16": half}
    elif kind == "tpu":
        rates["int8"] = roof.seconds(1e12, 0.0, itemsize=1)
    how = "measured by the profile"
    peak = {format: Figure(1e12 / seconds, how) for format, seconds in rates.items() if seconds and isfinite(seconds)}
    start = StartCost.of(every)
    launch, fill = (Figure(one, how, NOTE) if one else None for one in (start.launch, start.fill))
    return DescribedMachine(
        name,
        every[0].where,
        kind,
        Figure(roof.bandwidth, how),
        peak,
        launch_overhead=launch,
        fill_time=fill,
        convolutions=tuple(_measured_convolutions(every, start)),
        usual_efficiency=_usual_efficiency(every, start),
    )


def _is_start(found: ProgramProfile, kernel: KernelProfile, start: StartCost) -> bool:
    """Whether a kernel is dominated by overhead (launch, and too little work to fill the machine), so that its time does not show its rate."""
    beside = start.seconds(kernel)
    few = roof_seconds(found, kernel) < LITTLE * kernel.seconds and kernel.seconds < FEW * beside
    return few or beside > 0.5 * kernel.seconds


def _telling(every: Sequence[ProgramProfile], start: StartCost) -> Iterator[tuple[KernelProfile, float]]:
    """The kernels whose times show their rate, and their time at the roofline."""
    for found in every:
        for kernel in found.kernels:
            least = roof_seconds(found, kernel)
            if least and not _is_start(found, kernel, start):
                yield kernel, least


def _usual_efficiency(every: Sequence[ProgramProfile], start: StartCost) -> float:
    """The mean efficiency of all kernels that are not launch-bound and perform the operations that are counted."""
    kernels = [(kernel, least) for kernel, least in _telling(every, start) if not is_fast(kernel.name)]
    seconds = sum(kernel.seconds - start.seconds(kernel) for kernel, _ in kernels)
    return sum(least for _, least in kernels) / seconds if seconds else USUAL


def _measured_convolutions(every: Sequence[ProgramProfile], start: StartCost) -> Iterator[MeasuredConvolution]:
    for kernel, least in _telling(every, start):
        if kernel.name.startswith("conv"):
            yield MeasuredConvolution(kernel.name, least / (kernel.seconds - start.seconds(kernel)))


def _projected(
    found: ProgramProfile, kernel: KernelProfile, machine: DescribedMachine, format: str | None, typical: float, start: StartCost
) -> tuple[KernelProfile, str]:  # fmt: skip
    efficiency = _efficiency(found, kernel, machine, typical, start)
    own = format_of(kernel)
    wanted = format if format is not None and own != "int8" else own
    nbytes = kernel.nbytes * SIZES[wanted] / SIZES[own]
    cached = machine.on_chip_bytes is None or max(kernel.live, nbytes) <= machine.on_chip_bytes.value
    from_memory = efficiency if cached else min(1.0, efficiency)
    compute, memory = machine.seconds(kernel.flops, 0.0, wanted), machine.seconds(0.0, nbytes, wanted)
    launch, fill = (0.0 if one is None else one.value for one in (machine.launch_overhead, machine.fill_time))
    parts = {
        "compute": compute / efficiency,
        "memory": memory / from_memory,
        "launch": StartCost(launch, fill).seconds(kernel),
    }
    bound = max(parts, key=lambda name: parts[name])
    # A kernel without counted work costs its launch; if the launch overhead is unknown, its time here.
    seconds = max(parts["compute"], parts["memory"]) + parts["launch"] or kernel.seconds
    return replace(kernel, seconds=seconds, least=max(compute, memory), nbytes=nbytes), bound


def _efficiency(
    found: ProgramProfile, kernel: KernelProfile, machine: DescribedMachine, typical: float, start: StartCost
) -> float:
    """The efficiency that a kernel is expected to reach on a machine; `typical` if its time here says nothing."""
    least = roof_seconds(found, kernel)
    if not least or _is_start(found, kernel, start):
        return typical
    own = least / (kernel.seconds - start.seconds(kernel))
    return efficiency_there(kernel.name, own, machine.convolutions, typical) if kernel.name.startswith("conv") else own


def parse_machines(text: str) -> Sequence[tuple[str, str | None]]:
    """Names of machines, each optionally with a format after a colon.

    >>> parse_machines("titan-x,tegra-x1:float16")
    [('titan-x', None), ('tegra-x1', 'float16')]
    """
    parts = [part.strip().partition(":") for part in text.split(",")]
    return [(name, format or None) for name, _, format in parts]
