"""Where jobs can run: every GPU of the machine, CPU slots for trainings, task slots for everything else, and one for those that only wait."""

from __future__ import annotations

from ...device_names import gpu_name
from ...records import dataclass
from .gpu_monitor import GpuMonitor
from .needs import CPU, GPU, GROUP, TASK

TASKS_AT_ONCE = 2
JOBS_PER_GPU = 4  # more than that slow each other down, however small they are
GROUPS_AT_ONCE = 32  # sweeps and cross-validations, each a process that sleeps most of the time


@dataclass(frozen=True)
class ComputeSlot:
    """A GPU, which several jobs share by memory, a slot for one job, or the one of all sweeps and cross-validations."""

    name: str  # cuda:0, cpu:0, task:0, group:0
    kind: str
    memory: int = 0  # bytes of a GPU

    @property
    def title(self) -> str:
        """
        >>> ComputeSlot("cuda:0", "gpu").title, ComputeSlot("cpu:0", "cpu").title
        ('GPU 0', 'CPU slot 1')
        """
        if self.kind == GROUP:
            return "Sweeps and cross-validations"
        number = int(self.name.partition(":")[2])
        return f"GPU {number}" if self.kind == GPU else f"{'CPU' if self.kind == CPU else 'Task'} slot {number + 1}"

    @property
    def most_jobs(self) -> int:
        return {GPU: JOBS_PER_GPU, GROUP: GROUPS_AT_ONCE}.get(self.kind, 1)


def machine_slots(at_once: int = 1, tasks: int = TASKS_AT_ONCE) -> list[ComputeSlot]:
    """The slots of this machine: its GPUs, `at_once` CPU slots, `tasks` task slots, and that of groups."""
    return [*gpu_slots(), *host_slots(at_once, tasks)]


def host_slots(at_once: int, tasks: int = TASKS_AT_ONCE) -> list[ComputeSlot]:
    """The slots of the CPU."""
    cpu = [ComputeSlot(f"cpu:{i}", CPU) for i in range(at_once)]
    return [*cpu, *(ComputeSlot(f"task:{i}", TASK) for i in range(tasks)), ComputeSlot("group:0", GROUP)]


def gpu_slots() -> list[ComputeSlot]:
    """The GPUs that CUDA shows to this process, in its order."""
    with GpuMonitor() as gpus:
        found = list(enumerate(map(gpus.memory, gpus.handles)))
    return [ComputeSlot(gpu_name(number), GPU, int(memory.total)) for number, memory in found if memory is not None]


def memory_by_process() -> dict[int, int]:
    """Bytes of GPU memory that each process uses, on the GPU where it uses most; empty where it cannot be measured."""
    found: dict[int, int] = {}
    with GpuMonitor() as gpus:
        for gpu in gpus.handles:
            for pid, used in gpus.processes(gpu).items():
                found[pid] = max(found.get(pid, 0), used)
    return found
