"""The processes of a distributed program: their number, and the rank of this one.

`weft launch` passes this in environment variables; those of MPI, SLURM, torchrun and Kubernetes are supported as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from ..errors import UserError
from ..records import dataclass

RANK, SIZE, GROUP = "WEFT_RANK", "WEFT_WORLD_SIZE", "WEFT_GROUP"

# Launchers in the order of detection: the variables of the rank, of the number of processes, and of the local rank on its machine
# ("" if there is none).
LAUNCHERS = {
    "weft launch": (RANK, SIZE, RANK),  # on one machine
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "PMIx": ("PMIX_RANK", "PMIX_SIZE", ""),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "SLURM": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # of srun: a batch script itself has no rank
    "Kubernetes": ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
}
# Launchers that name the job, which may have all its processes on one machine: two variables that are equal then (or one that is "1"), and
# those that tell jobs apart.
ONE_MACHINE = {
    "torchrun": (("LOCAL_WORLD_SIZE", "WORLD_SIZE"), ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")),
    "SLURM": (("SLURM_STEP_NUM_NODES",), ("SLURM_JOB_ID", "SLURM_STEP_ID")),
}  # fmt: skip


@dataclass(frozen=True)
class World:
    """All processes that were started together."""

    rank: int = 0
    size: int = 1
    launcher: str = ""  # "" for a process started without a launcher
    group: str = ""  # of `weft launch`: the file that its processes share
    local_rank: int | None = None  # among the processes of this machine; None if unknown
    rendezvous: str = ""  # the name of a job whose processes are all on one machine, and need no MPI to find each other


@cache
def world() -> World:
    """The processes that were started together with this one."""
    return read_world(os.environ)


def read_world(environment: Mapping[str, str]) -> World:
    """The world described by the environment variables of a process.

    >>> read_world({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"})
    World(rank=3, size=8, launcher='SLURM', group='', local_rank=1, rendezvous='')
    """
    for launcher, (rank, size, local) in LAUNCHERS.items():
        if rank in environment and size in environment:
            numbers = environment[rank], environment[size]
            if not all(n.isdecimal() for n in numbers) or not int(numbers[0]) < int(numbers[1]):
                raise UserError(
                    "parallel",
                    f"a rank below the number of ranks is required, got {rank}={numbers[0]} and {size}={numbers[1]}.",
                )
            here = environment.get(local, "")
            number = int(here) if here.isdecimal() else None
            group, job = environment.get(GROUP, ""), _rendezvous(launcher, environment)
            return World(int(numbers[0]), int(numbers[1]), launcher, group, number, job)
    return World()


def _rendezvous(launcher: str, environment: Mapping[str, str]) -> str:
    """The name of the job if its processes are known to be on one machine."""
    if launcher not in ONE_MACHINE:
        return ""
    compared, names = ONE_MACHINE[launcher]
    values = [environment.get(name, "") for name in compared]
    if not values[0] or values[0] != (values[1] if len(values) > 1 else "1") or names[0] not in environment:
        return ""
    return " ".join([launcher, *(environment.get(name, "") for name in names)])
