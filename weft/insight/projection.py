"""What a measured program would take on another machine, projected from that machine's peak numbers.

    project(profile(step, x), machine("titan-x")).seconds

For each kernel

    time = max(operations / peak / e,  bytes / bandwidth / e,  launch overhead)

where e is the efficiency that the kernel reaches here: the least time that the measured roof of this machine allows, as a fraction of
the time it takes. The other machine is assumed to come as close to its own peak. Three rules make that assumption reasonable:

- A kernel that is bound by its launch here says nothing about the machine: it has the efficiency of the rest of the program.
- More than the roof by fewer operations (Winograd) carries over. More than the roof of the memory, from a cache, carries over only if
  the values in use fit into the cache of the other machine.
- A kernel in a format that the other machine has no units for runs in the wider one that it has.

Peaks are those of data sheets, which programs reach to 80 or 90 % at best, so projections are optimistic by about as much.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .layer_profile import KernelProfile, LayerProfile, summed
from .machines import WIDER, DescribedMachine
from .profile import ProgramProfile
from .table_reader import Figure

SIZES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1}


@dataclass(frozen=True)
class Projection:
    """A program on a machine that is not here. All times are projected, none is measured."""

    machine: DescribedMachine
    kernels: tuple[KernelProfile, ...]  # with projected times
    bounds: tuple[str, ...]  # what limits each: compute, memory or launch
    format: str | None  # that floats are computed in; None: their own

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    @cached_property
    def layers(self) -> tuple[LayerProfile, ...]:
        """Every layer with all of its phases."""
        return summed(self.kernels, lambda s: s if s.phase == "update" else s._replace(phase=""))

    @property
    def joules(self) -> float | None:
        """The energy if the machine takes all of its power limit."""
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
        machine.peak_for(format)  # an error before anything is computed
    typical = _typical_efficiency(found)
    pairs = [_projected(found, kernel, machine, format, typical) for kernel in found.kernels]
    return Projection(machine, tuple(kernel for kernel, _ in pairs), tuple(bound for _, bound in pairs), format)


def measured_machine(name: str, found: ProgramProfile, kind: str = "cpu") -> DescribedMachine:
    """The machine that a profile was measured on, as its measured roof describes it: to project other profiles to it.

    >>> import weft
    >>> from weft.insight import profile
    >>> measured_machine("mine", profile(weft.nn.ReLU(), weft.ones(8))).peak["float32"].source
    'measured by the profile'
    """
    roof = found.explanation.roof
    rates = {"float32": roof.seconds(1e12, 0.0), "float64": roof.seconds(1e12, 0.0, itemsize=8)}
    if kind == "gpu":
        half = roof.seconds(1e12, 0.0, itemsize=2)
        rates |= {"float16": half, "bfloat16": half}
    how = "measured by the profile"
    peak = {format: Figure(1e12 / seconds, how) for format, seconds in rates.items() if seconds}
    launches = [k.seconds for k in found.kernels if found.bound(k).limit == "launch"]
    launch = Figure(statistics.median(launches), how, "kernels that are bound by their launch") if launches else None
    return DescribedMachine(name, found.where, kind, Figure(roof.bandwidth, how), peak, launch_overhead=launch)


def _least(found: ProgramProfile, kernel: KernelProfile) -> float:
    """The least time here, by the same formula as there. (`kernel.least` adds up phases that run one after the other.)"""
    return found.explanation.roof.seconds(kernel.flops, kernel.nbytes, itemsize=SIZES[format_of(kernel)])


def _typical_efficiency(found: ProgramProfile) -> float:
    """Of all kernels that are not bound by their launch."""
    counted = [k for k in found.kernels if _least(found, k)]
    kernels = [k for k in counted if found.bound(k).limit != "launch"] or counted
    seconds = sum(k.seconds for k in kernels)
    return sum(_least(found, k) for k in kernels) / seconds if seconds else 1.0


def _projected(
    found: ProgramProfile, kernel: KernelProfile, machine: DescribedMachine, format: str | None, typical: float
) -> tuple[KernelProfile, str]:
    least = _least(found, kernel)
    efficiency = typical if found.bound(kernel).limit == "launch" or not least else least / kernel.seconds
    own = format_of(kernel)
    wanted = format if format is not None and own.startswith("float") else own
    nbytes = kernel.nbytes * SIZES[wanted] / SIZES[own]
    cached = machine.on_chip_bytes is None or max(kernel.live, nbytes) <= machine.on_chip_bytes.value
    from_memory = efficiency if cached else min(1.0, efficiency)
    compute, memory = machine.seconds(kernel.flops, 0.0, wanted), machine.seconds(0.0, nbytes, wanted)
    launch = 0.0 if machine.launch_overhead is None else machine.launch_overhead.value
    parts = {"compute": compute / efficiency, "memory": memory / from_memory, "launch": launch}
    bound = max(parts, key=lambda name: parts[name])
    # A kernel without counted work costs its launch; where none is known, what it costs here.
    seconds = parts[bound] or kernel.seconds
    return replace(kernel, seconds=seconds, least=max(compute, memory), nbytes=nbytes), bound


def format_of(kernel: KernelProfile) -> str:
    """The format of a kernel as machines have them: integers other than int8 count as float32, as wide as them."""
    return kernel.format if kernel.format in WIDER else "float32"


def parse_machines(text: str) -> Sequence[tuple[str, str | None]]:
    """Names of machines, each with a format behind a colon or without one.

    >>> parse_machines("titan-x,tegra-x1:float16")
    [('titan-x', None), ('tegra-x1', 'float16')]
    """
    parts = [part.strip().partition(":") for part in text.split(",")]
    return [(name, format or None) for name, _, format in parts]
