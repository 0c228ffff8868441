"""mpi4py's side of benchmarks/parallel.py: its own Allreduce."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
from parallel_cases import pin, times_of
from parallel_peers import PeerRanks, script, serve


def started(n: int) -> PeerRanks:
    """So many processes under mpiexec."""
    command = [shutil.which("mpiexec") or "mpiexec", "-n", str(n)]
    version = subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout
    if "Open" in version:  # Open MPI
        command += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    return PeerRanks([[*command, *script("parallel_mpi.py")]], n)


def _reduce(size: int, count: int) -> list[float]:
    x = np.ones(size // 4, np.float32)
    y = np.empty_like(x)
    world.Allreduce(x, y)
    world.Barrier()
    return times_of(lambda: world.Allreduce(x, y), count)


if __name__ == "__main__":
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pin(world.rank)
    serve(sys.argv[1], world.rank, {"reduce": _reduce})
