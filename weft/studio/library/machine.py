"""How busy this machine is: processors, memory, GPUs, disk."""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HISTORY = 60  # readings that are kept for the charts


@dataclass(frozen=True)
class GpuLoad:
    """One GPU at one time."""

    name: str
    use: float  # 0 to 1
    memory_used: int
    memory: int
    celsius: float | None
    watts: float | None


@dataclass(frozen=True)
class MachineLoad:
    """The machine at one time."""

    cpu: float  # 0 to 1, over all cores
    cores: int
    memory_used: int
    memory: int
    disk_used: int
    disk: int
    gpus: tuple[GpuLoad, ...] = ()

    @property
    def memory_share(self) -> float:
        return self.memory_used / self.memory if self.memory else 0.0

    @property
    def disk_share(self) -> float:
        return self.disk_used / self.disk if self.disk else 0.0


@dataclass
class Machine:
    """Reads the load of this machine and keeps the last minute of it."""

    folder: Path  # the disk that runs are written to
    history: dict[str, deque[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._gpus = _Gpus()
        psutil.cpu_percent()  # the first reading has nothing to compare with

    def read(self) -> MachineLoad:
        """The load since the last reading."""
        memory, disk = psutil.virtual_memory(), shutil.disk_usage(_existing(self.folder))
        load = MachineLoad(
            psutil.cpu_percent() / 100, psutil.cpu_count() or 1, memory.total - memory.available, memory.total,
            disk.used, disk.used + disk.free, tuple(self._gpus.read()),
        )  # fmt: skip
        for name, value in {"cpu": load.cpu, **{f"gpu{i}": gpu.use for i, gpu in enumerate(load.gpus)}}.items():
            self.history.setdefault(name, deque(maxlen=HISTORY)).append(value)
        return load


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())


class _Gpus:
    """NVIDIA's management library, where it is installed and finds GPUs."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except Exception:  # no package, no driver or no GPU
            self._handles = []

    def read(self) -> list[GpuLoad]:
        return [self._load(i, handle) for i, handle in enumerate(self._handles)]

    def _load(self, number: int, handle: Any) -> GpuLoad:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        use = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
        celsius = self._ask(lambda: float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)))
        watts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        return GpuLoad(f"GPU {number}", use or 0.0, memory.used, memory.total, celsius, watts)

    def _ask(self, question: Any) -> float | None:
        """An answer, or None from a GPU that does not measure it."""
        try:
            found: float = question()
            return found
        except self._nvml.NVMLError:
            return None
