"""Described machines: peak rates, bandwidth, memory, power and price of machines, available here or not, each figure with its source.

The table is `machines.yaml`. `here` is this machine's processor, measured. A file in the same format adds machines, or replaces some:

    weft.insight.machines("lab.yaml")["our-node"]
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from ..compiler.cpu.roofline import last_cache, roof
from ..compiler.cpu.target import host
from ..errors import UserError
from ..hints import nearest
from ..knobs import knobs
from ..records import dataclass
from ..runtime import Device
from ..runtime.native import thread_count
from .measured_convolutions import MeasuredConvolution
from .table_reader import Figure, TableEntry, table_file

TABLE = Path(__file__).with_name("machines.yaml")
HERE = "here"
FORMATS = ("float64", "float32", "tf32", "float16", "bfloat16", "float8", "int8")
KINDS = ("cpu", "gpu", "tpu")
# A format that a machine does not support runs in the next of these that it does.
WIDER = {
    "int8": ("float32", "bfloat16"),
    "float8": ("float16", "bfloat16", "float32"),
    "float16": ("float32",),
    "bfloat16": ("float32",),
    "tf32": ("float32",),
    "float32": ("float64",),
    "float64": (),
}
_FIGURES = [
    "year",
    "process_nm",
    "cores",
    "on_chip_bytes",
    "memory_bytes",
    "power",
    "idle_power",
    "price",
    "dollars_per_hour",
    "launch_overhead",
    "fill_time",
]


@dataclass(frozen=True)
class DescribedMachine:
    """A machine by its published specification. A figure is None where none was found.

    Units are operations per second (a multiply-add is two), bytes, bytes per second, watts, US dollars, seconds and nanometres.

        >>> titan = machine("titan-x")
        >>> float(titan.memory_bandwidth) / 1e9
        336.5
        >>> titan.power.source.startswith("NVIDIA")
        True
    """

    name: str
    title: str
    kind: str  # "cpu", "gpu" or "tpu"
    memory_bandwidth: Figure
    peak: Mapping[str, Figure] = field(default_factory=dict)  # by format
    year: Figure | None = None
    process_nm: Figure | None = None
    cores: Figure | None = None
    on_chip_bytes: Figure | None = None  # of the last-level cache, or of the on-chip memory
    memory_bytes: Figure | None = None
    power: Figure | None = None  # thermal design power
    idle_power: Figure | None = None
    price: Figure | None = None  # to buy it
    dollars_per_hour: Figure | None = None  # to rent it
    launch_overhead: Figure | None = None  # seconds between two kernels
    fill_time: Figure | None = (
        None  # seconds that a kernel takes to fill all units and to wait for the last one, besides its work
    )
    # Of a measured machine, what the programs show that were measured there:
    convolutions: tuple[MeasuredConvolution, ...] = ()
    usual_efficiency: float | None = None  # of kernels that are not bound by launch overhead

    def peak_for(self, format: str) -> Figure:
        """The peak rate in a format; if the machine does not support it, that of the wider format it is computed in.

        >>> machine("titan-x").peak_for("int8").note
        'computed in float32: 3,072 cores x 2 x 1.0 GHz (base)'
        """
        if format not in WIDER:
            raise UserError(
                "machine", f"a format is one of {', '.join(WIDER)}, got {format!r}. {nearest(format, list(WIDER))}"
            )
        if format in self.peak:
            return self.peak[format]
        for wider in WIDER[format]:
            if wider in self.peak:
                found = self.peak[wider]
                return Figure(found.value, found.source, f"computed in {wider}: {found.note}", found.modelled)
        raise UserError(
            "machine",
            f"{self.name} computes in {', '.join(self.peak)}, got {format}. "
            f"Choose one of these ({self.name}:{next(iter(self.peak))}), or another machine.",
        )

    def seconds(self, operations: float, nbytes: float, format: str = "float32") -> float:
        """The roofline time of the work: the maximum of compute time and memory time.

        >>> machine("titan-x").seconds(6.144e12, 0)
        1.0
        """
        return max(operations / float(self.peak_for(format)), nbytes / float(self.memory_bandwidth))


@dataclass(frozen=True)
class PublishedResult:
    """A published throughput.

    >>> best = max(published(), key=lambda row: row.images_per_second_per_watt)
    >>> best.machine, best.images_per_second_per_watt
    ('tegra-x1', 45.0)
    """

    network: str
    machine: str
    format: str
    batch: int
    images_per_second: float
    watts: float
    images_per_second_per_watt: float
    source: str


def machine(name: str, file: str | Path | None = None) -> DescribedMachine:
    """A machine by name; `here` is this machine's processor, whose rates are measured.

    >>> machine("h200").title
    'NVIDIA H200 SXM 141GB'
    """
    if name == HERE:
        return this_machine()
    found = _tables(file)
    if name not in found:
        known = [*found, HERE]
        raise UserError("machine", f"there is no machine {name!r}. {nearest(name, known)}")
    return found[name]


def machines(file: str | Path | None = None) -> dict[str, DescribedMachine]:
    """All machines by name: the built-in ones, those of the file in the setting `machines`, and of `file`; `here` is not measured for it.

    >>> "tpu-v1" in machines()
    True
    """
    return dict(_tables(file))


def published(file: str | Path | None = None) -> list[PublishedResult]:
    """Published throughputs, with their sources.

    >>> {row.network for row in published()}
    {'alexnet'}
    """
    return [row for path in _files(file) for row in read_machines(path)[1]]


def machine_like(device: Device, file: str | Path | None = None) -> DescribedMachine | None:
    """The described machine that matches a device's name: all parts of the machine's name are among the words of the device's."""
    words = set(_words(processor_name() if device.is_host_processor else device.hardware_name()))
    found = [one for one in _tables(file).values() if set(_words(one.name)) <= words]
    return max(found, key=lambda one: len(_words(one.name)), default=None)


def processor_name() -> str:
    """The vendor's name of this machine's processor; empty where Linux does not report it.

    >>> isinstance(processor_name(), str)
    True
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _words(name: str) -> list[str]:
    """The lower-case words of a name. Intel(R) Core(TM) i7-6700K: intel, r, core, tm, i7, 6700k."""
    return re.findall(r"[a-z0-9.]+", name.lower())


@cache
def this_machine() -> DescribedMachine:
    """The processor of this machine: float32 and bandwidth are measured on all threads, the rest is read from the system."""
    cpu, threads = host(), thread_count()
    measured = roof(threads)
    how = f"measured on this machine, {threads} threads"
    doubt = "" if measured.sure else "too low: other programs kept the cores busy while it was measured"
    peak = {
        "float32": Figure(measured.flops, how, doubt),
        "float64": Figure(measured.flops / 2, how, "half of float32: vectors hold half as many", modelled=True),
    }
    if measured.byte_rate != 1:
        how_bytes = "a matrix unit" if cpu.matrix else "dot products of bytes"
        rule = f"{measured.byte_rate:g} times float32: {how_bytes}"
        peak["int8"] = Figure(measured.flops * measured.byte_rate, how, rule, modelled=True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return DescribedMachine(
        HERE,
        f"this machine: {cpu.cpu} ({platform.machine()}), {threads} threads",
        "cpu",
        Figure(measured.bandwidth, how, doubt),
        peak,
        cores=Figure(cpu.cores, "the operating system"),
        on_chip_bytes=Figure(last_cache(), "the operating system", "last cache"),
        memory_bytes=Figure(memory, "the operating system"),
    )


def _files(file: str | Path | None) -> list[Path]:
    more = [Path(path).expanduser() for path in (knobs.machines, file) if path]
    return [TABLE, *more]


def _tables(file: str | Path | None) -> dict[str, DescribedMachine]:
    found: dict[str, DescribedMachine] = {}
    for path in _files(file):
        found |= read_machines(path)[0]
    return found


@table_file
def read_machines(top: TableEntry) -> tuple[dict[str, DescribedMachine], list[PublishedResult]]:
    """The machines and the published results of a file."""
    top.only(("sources", "machines", "published"))
    entries = top.optional_entry("machines")
    found = {} if entries is None else {name: _machine(name, entry) for name, entry in entries.entries()}
    if HERE in found and entries is not None:
        entries.fail(HERE, "is the name of this machine, which is measured. Choose another name.")
    return found, [_published(row) for row in top.items("published")]


def _machine(name: str, entry: TableEntry) -> DescribedMachine:
    entry.only(("title", "kind", "peak", "memory_bandwidth", *_FIGURES))
    bandwidth = entry.figure("memory_bandwidth")
    figures: dict[str, Any] = {key: entry.optional_figure(key) for key in _FIGURES}
    peak = entry.figures("peak", FORMATS)
    if not peak:
        entry.fail("peak", f"requires the peak rate of a format or more: {', '.join(FORMATS)}.")
    for key, figure in (("memory_bandwidth", bandwidth), *figures.items(), *peak.items()):
        if figure is not None and figure.value == 0 and key != "idle_power":
            entry.fail(key, "requires a number above 0, got 0.")
    title, kind = entry.text("title", name), entry.choice("kind", KINDS)
    return DescribedMachine(name, title, kind, bandwidth, peak, **figures)


def _published(entry: TableEntry) -> PublishedResult:
    numbers = ("images_per_second", "watts", "images_per_second_per_watt")
    entry.only(("network", "machine", "format", "batch", *numbers, "source"))
    return PublishedResult(
        entry.text("network"),
        entry.text("machine"),
        entry.choice("format", FORMATS),
        int(entry.number("batch")),
        entry.number(numbers[0]),
        entry.number(numbers[1]),
        entry.number(numbers[2]),
        entry.source(),
    )
