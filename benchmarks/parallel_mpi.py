"""mpi4py's side of benchmarks/parallel.py: mpiexec -n N python benchmarks/parallel_mpi.py"""

from __future__ import annotations

import json
from functools import partial
from statistics import median

import numpy as np
from mpi4py import MPI
from parallel_cases import SIZES, repeats, seconds

world, found = MPI.COMM_WORLD, {}
for size in SIZES:
    x = np.ones(size // 4, np.float32)
    y = np.empty_like(x)
    for _ in range(3):
        world.Allreduce(x, y)
    taken = median(seconds(partial(world.Allreduce, x, y)) for _ in range(repeats(size)))
    found[size] = world.allreduce(taken, op=MPI.MAX)
if world.rank == 0:
    print(json.dumps(found))
