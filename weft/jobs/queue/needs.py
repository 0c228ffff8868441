"""What a job needs of the machine, as recorded when it is submitted: GPUs with some memory, a CPU slot, a task slot, or nothing.

Trainings on the CPU take CPU slots. Every other kind of job (datasets, checks, exports, ...) takes a task slot unless its settings name a GPU, so
that it never waits for trainings. Sweeps and cross-validations only wait for their trainings, for hours: they have slots of their own, and keep
neither tasks nor those trainings from starting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ...device_names import CUDA, read_device_name
from ...errors import UserError
from ...knobs import knobs
from ...parallel.forms import processes_of
from ...records import dataclass
from .kinds import GROUPS, TRAIN

GPU, CPU, TASK, GROUP = "gpu", "cpu", "task", "group"
MOST_GPUS = 64
PRIORITIES = {"low": -1, "normal": 0, "high": 1}


@dataclass(frozen=True)
class JobNeeds:
    """Where a job can run, and what is forecast of it."""

    slot: str = CPU  # gpu, cpu, task or group
    gpus: int = 1  # GPUs at the same time, of slot gpu
    device: str | None = None  # the only GPU that will do, such as cuda:1; None is the next free one
    memory: int | None = None  # bytes on each GPU; unknown: the job has the GPU to itself
    seconds: float | None = None  # duration, if it is known


def needs_of(
    kind: str, settings: Mapping[str, Any], gpus: int = 1, memory: int | None = None, seconds: float | None = None
) -> JobNeeds:
    """The needs of a job of this kind with these settings. `device=cuda` is the next free GPU, `cuda:1` that one.

    >>> needs_of(TRAIN, {"device": "cuda", "parallel": "data:4"}).gpus
    4
    """
    if kind in GROUPS:
        return JobNeeds(GROUP, seconds=seconds)
    gpus = max(gpus, processes_of(settings.get("parallel")))
    device = str(settings.get("device") or (knobs.device if kind == TRAIN else "cpu"))
    name = read_device_name(device)
    if name.is_gpu:
        return JobNeeds(GPU, gpus, device if name.is_one_gpu and gpus == 1 else None, memory, seconds)
    return JobNeeds(CPU if kind == TRAIN else TASK, seconds=seconds)


def check_device(needs: JobNeeds, gpus: Callable[[], Sequence[str]]) -> None:
    """Refuse a job for whose device it would wait for ever. `gpus` finds the names of those there are.

    >>> check_device(JobNeeds(GPU, device="cuda:1"), lambda: ["cuda:0", "cuda:1"])
    """
    if needs.slot != GPU:
        return
    found = gpus()
    missing = needs.device not in found if needs.device is not None else len(found) < needs.gpus
    if missing:
        wanted = f"gpus={needs.gpus}" if needs.gpus > 1 else f"device={needs.device or CUDA}"
        hint = (
            ""
            if found or find_spec("pynvml")
            else " GPUs are found with the package nvidia-ml-py, which is not installed."
        )
        raise UserError(
            "jobs",
            f"a device of this machine is required, got {wanted}{'' if found else ', and no GPU was found'}. "
            f"Devices: {', '.join(['cpu', *found])}.{hint}",
        )


def needs_from_json(found: Any) -> JobNeeds | None:
    """Needs as job.json holds them; None if they are damaged, or a job was submitted before there were any."""
    types: dict[str, Any] = {
        "slot": str, "gpus": int, "device": str | None, "memory": int | None, "seconds": int | float | None,
    }  # fmt: skip
    if not isinstance(found, dict) or found.keys() != types.keys():
        return None
    whole = all(
        isinstance(found[name], kind) and not isinstance(found[name], bool)
        and (not isinstance(found[name], int | float) or found[name] >= 0) for name, kind in types.items()
    )  # fmt: skip
    if not whole or found["slot"] not in (GPU, CPU, TASK, GROUP) or not 1 <= found["gpus"] <= MOST_GPUS:
        return None
    return JobNeeds(**found)
