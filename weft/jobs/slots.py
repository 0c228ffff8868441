"""Where jobs can run: every GPU of the machine, CPU slots for trainings, and task slots for everything else."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .needs import CPU, GPU, TASK

TASKS_AT_ONCE = 2
JOBS_PER_GPU = 4  # more than that slow each other down, however small they are


@dataclass(frozen=True)
class ComputeSlot:
    """A GPU, which several jobs share by memory, or a slot for one job."""

    name: str  # cuda:0, cpu:0, task:0
    kind: str
    memory: int = 0  # bytes of a GPU

    @property
    def title(self) -> str:
        """
        >>> ComputeSlot("cuda:0", "gpu").title, ComputeSlot("cpu:0", "cpu").title
        ('GPU 0', 'CPU slot 1')
        """
        number = int(self.name.partition(":")[2])
        return f"GPU {number}" if self.kind == GPU else f"{'CPU' if self.kind == CPU else 'Task'} slot {number + 1}"

    @property
    def most_jobs(self) -> int:
        return JOBS_PER_GPU if self.kind == GPU else 1


def machine_slots(at_once: int = 1, tasks: int = TASKS_AT_ONCE) -> list[ComputeSlot]:
    """The slots of this machine: its GPUs, `at_once` CPU slots and `tasks` task slots."""
    return [*gpu_slots(), *host_slots(at_once, tasks)]


def host_slots(at_once: int, tasks: int = TASKS_AT_ONCE) -> list[ComputeSlot]:
    """The slots of the CPU."""
    cpu = [ComputeSlot(f"cpu:{i}", CPU) for i in range(at_once)]
    return [*cpu, *(ComputeSlot(f"task:{i}", TASK) for i in range(tasks))]


def gpu_slots() -> list[ComputeSlot]:
    """The GPUs that CUDA shows to this process, in its order, by NVIDIA's management library; none without it."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no package, no driver, or no GPU: the library has many ways to say so
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        ids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        chosen = visible(os.environ.get("CUDA_VISIBLE_DEVICES"), ids)
        memory = [nvml.nvmlDeviceGetMemoryInfo(handles[i]).total for i in chosen]
        return [ComputeSlot(f"cuda:{number}", GPU, int(total)) for number, total in enumerate(memory)]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def memory_by_process() -> dict[int, int]:
    """Bytes of GPU memory that each process uses; empty where it cannot be measured."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        return {}
    found: dict[int, int] = {}
    try:
        for number in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                found[process.pid] = max(found.get(process.pid, 0), int(process.usedGpuMemory or 0))
    except nvml.NVMLError:
        return {}
    finally:
        nvml.nvmlShutdown()
    return found


def visible(setting: str | None, ids: Sequence[str]) -> list[int]:
    """The numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; a part that names none ends the list, as for CUDA.

    >>> visible(None, ["GPU-a", "GPU-b"]), visible("1,0", ["GPU-a", "GPU-b"]), visible("GPU-b,7,0", ["GPU-a", "GPU-b"])
    ([0, 1], [1, 0], [1])
    """
    if setting is None:
        return list(range(len(ids)))
    found: list[int] = []
    for part in map(str.strip, setting.split(",")):
        if part.isdigit() and int(part) < len(ids):
            found.append(int(part))
        elif part and not part.isdigit() and any(one.startswith(part) for one in ids):
            found.append(next(i for i, one in enumerate(ids) if one.startswith(part)))
        else:
            break
    return found


def _text(found: Any) -> str:
    return found.decode() if isinstance(found, bytes) else str(found)
