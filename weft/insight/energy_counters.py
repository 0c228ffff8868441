"""Measured energy: the counters that a device has, read before and after a computation.

    with measured_energy() as used:
        for _ in range(100):
            step(x)
    print(used)     # 41.2 J in 1.2 s, 34.3 W (RAPL: package-0, dram; idle power is included)

A GPU has a counter for the whole board (NVML, since Volta). Processors of Intel and AMD count the joules of each package and of its
memory (RAPL); Linux exposes them under /sys/class/powercap, most often to the administrator only, and by perf, where that is allowed. Where there is
no counter, or it fails, `joules` is None and `note` says why: the computation itself is not disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from ..nvml import open_nvml
from ..records import dataclass
from ..runtime import Device
from ..runtime import device as find_device
from .counter_error import CounterError
from .perf_energy import PMU, PerfCounter

POWERCAP = Path("/sys/class/powercap")
SHORTEST = 0.2  # seconds: GPU counters update about every tenth of a second
IDLE_SECONDS = 1.0  # in which idle power is measured


class EnergyCounter(Protocol):
    """A counter of joules."""

    source: str

    def read(self) -> tuple[int, ...]:
        """The current reading, in its own units; raises CounterError."""

    def joules(self, before: tuple[int, ...], after: tuple[int, ...]) -> float:
        """The energy between two readings."""

    def close(self) -> None:
        """Release it."""


@dataclass
class EnergyReading:
    """The energy used inside `with measured_energy()`; complete on exit.

    >>> print(EnergyReading(12.0, 3.0, "RAPL: package-0"))
    12 J in 3 s, 4 W (RAPL: package-0; idle power is included)
    """

    joules: float | None = None  # None: not measured; `note` says why
    seconds: float = 0.0
    source: str = ""
    idle_watts: float | None = None  # that was subtracted; None: nothing was
    note: str = ""

    @property
    def watts(self) -> float | None:
        return None if self.joules is None or not self.seconds else self.joules / self.seconds

    def __str__(self) -> str:
        if self.joules is None:
            return f"not measured: {self.note}"
        idle = (
            "idle power is included"
            if self.idle_watts is None
            else f"{self.idle_watts:.3g} W of idle power are subtracted"
        )
        more = f"; {self.note}" if self.note else ""
        return f"{self.joules:.3g} J in {self.seconds:.3g} s, {self.watts or 0:.3g} W ({self.source}; {idle}{more})"


@contextmanager
def measured_energy(device: Device | None = None, *, idle_watts: float | None = None) -> Iterator[EnergyReading]:
    """Measure the energy that a device uses inside the `with`; `idle_watts` (see `idle_power`) is subtracted.

    >>> with measured_energy() as used:
    ...     work = sum(range(1000))
    >>> used.joules is not None or "cannot" in used.note or "no " in used.note
    True
    """
    found = EnergyReading(idle_watts=idle_watts)
    device = device or find_device()
    try:
        counter = counter_of(device)
    except CounterError as error:
        found.note = str(error)
        yield found
        return
    with closing(counter):
        yield from _counted(counter, device, found)


def _counted(counter: EnergyCounter, device: Device, found: EnergyReading) -> Iterator[EnergyReading]:
    found.source = counter.source
    begin, before = time.perf_counter(), _asked(counter, found)
    yield found
    device.wait()
    after = _asked(counter, found)
    found.seconds = time.perf_counter() - begin
    if before is None or after is None:
        return
    found.joules = counter.joules(before, after) - (found.idle_watts or 0.0) * found.seconds
    if found.seconds < SHORTEST:
        found.note = f"{found.seconds:.2g} s is too short for an energy counter"


def _asked(counter: EnergyCounter, found: EnergyReading) -> tuple[int, ...] | None:
    try:
        return counter.read()
    except CounterError as error:
        found.note = str(error)
        return None


def idle_power(device: Device | None = None, seconds: float = IDLE_SECONDS) -> float | None:
    """The power of a device in watts while this process is idle; None without a counter. Other programs should be idle, too."""
    with measured_energy(device) as used:
        time.sleep(seconds)
    return used.watts


def counter_of(device: Device) -> EnergyCounter:
    """The counter of a device; raises CounterError if it has none."""
    bus = device.bus()
    if bus is not None:
        return NvmlCounter(bus)
    if not device.is_host_processor:
        raise CounterError(f"there is no energy counter for the device {device.name}")
    try:
        return RaplCounter(POWERCAP)
    except CounterError as no_file:
        try:
            return PerfCounter(PMU)
        except CounterError as no_event:
            raise CounterError(f"{no_file}; {no_event}") from None


class NvmlCounter:
    """The energy of a GPU's board since its driver was loaded."""

    def __init__(self, bus: str) -> None:
        self._nvml: Any = open_nvml()
        if self._nvml is None:
            raise CounterError("there is no management library of NVIDIA (the package nvidia-ml-py)")
        self.source = "NVML: the board of the GPU"
        try:
            self._gpu = self._nvml.nvmlDeviceGetHandleByPciBusId(bus)
        except self._nvml.NVMLError as error:
            self.close()
            raise CounterError(f"NVML has no GPU at {bus}: {error}") from None

    def read(self) -> tuple[int, ...]:
        try:
            return (int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu)),)
        except self._nvml.NVMLError as error:
            raise CounterError(f"the energy counter of the GPU cannot be read: {error}") from None

    def joules(self, before: tuple[int, ...], after: tuple[int, ...]) -> float:
        return (after[0] - before[0]) / 1e3  # the counter is in millijoules

    def close(self) -> None:
        self._nvml.nvmlShutdown()


class RaplCounter:
    """The energy of all packages of this machine and of their memory, as exposed by Linux.

    Counters wrap around at `max_energy_range_uj`, after some minutes at full power: one wrap-around between two readings is handled.
    """

    def __init__(self, folder: Path) -> None:
        domains = [path for path in sorted(folder.glob("intel-rapl:*")) if _name(path).startswith(("package", "dram"))]
        if not domains:
            raise CounterError(f"there is no energy counter of the processor (RAPL) under {folder}")
        self._files = [path / "energy_uj" for path in domains]
        self._ranges = [_integer(path / "max_energy_range_uj") for path in domains]
        self.source = f"RAPL: {', '.join(_name(path) for path in domains)}"
        self.read()

    def read(self) -> tuple[int, ...]:
        return tuple(map(_integer, self._files))

    def joules(self, before: tuple[int, ...], after: tuple[int, ...]) -> float:
        turns: Sequence[tuple[int, int, int]] = list(zip(before, after, self._ranges, strict=True))
        return sum(last - first if last >= first else last - first + range_ for first, last, range_ in turns) / 1e6

    def close(self) -> None:
        """Nothing is held open."""


def _name(domain: Path) -> str:
    try:
        return (domain / "name").read_text().strip()
    except OSError:
        return ""


def _integer(path: Path) -> int:
    try:
        return int(path.read_text())
    except PermissionError:
        raise CounterError(
            f"the energy counter {path} cannot be read: permission denied. An administrator can allow it: chmod a+r {path}"
        ) from None
    except (OSError, ValueError) as error:
        raise CounterError(f"the energy counter {path} cannot be read: {error}") from None
