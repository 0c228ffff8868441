"""How busy this machine is: processors, memory, GPUs, disk."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path

import psutil

from ...jobs.queue.gpu_monitor import GpuMonitor
from ...records import dataclass

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
        self._gpus = GpuMonitor()
        psutil.cpu_percent()  # the first reading has nothing to compare with

    def read(self) -> MachineLoad:
        """The load since the last reading."""
        memory, disk = psutil.virtual_memory(), shutil.disk_usage(_existing(self.folder))
        load = MachineLoad(
            psutil.cpu_percent() / 100, psutil.cpu_count() or 1, memory.total - memory.available, memory.total,
            disk.used, disk.used + disk.free, tuple(self._loads()),
        )  # fmt: skip
        for name, value in {"cpu": load.cpu, **{f"gpu{i}": gpu.use for i, gpu in enumerate(load.gpus)}}.items():
            self.history.setdefault(name, deque(maxlen=HISTORY)).append(value)
        return load

    def _loads(self) -> Iterator[GpuLoad]:
        gpus = self._gpus
        for number, gpu in enumerate(gpus.handles):
            memory = gpus.memory(gpu)
            if memory is not None:
                use, celsius, watts = gpus.use(gpu) or 0.0, gpus.celsius(gpu), gpus.watts(gpu)
                yield GpuLoad(f"GPU {number}", use, memory.used, memory.total, celsius, watts)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
