"""The collectives of test_collectives.py under mpiexec: prints how many results each rank compared. Run by test_mpi.py."""

import numpy as np

import test_collectives as collectives
from weft import parallel

size, rank = parallel.world().size, parallel.world().rank
engine = collectives.mesh_of(data=size).engine
compared = 0
for compiled in (False, True):
    found = collectives.apply_all(size, compiled)
    for (shape, dtype), results in zip(collectives.cases_of(size, compiled), found, strict=True):
        wanted = list(collectives.expected(size, shape, dtype))[rank]
        for got, want in zip(results, wanted, strict=True):
            assert np.array_equal(got, np.asarray(want, np.float64)), (shape, dtype, compiled)
            compared += 1
print(f"rank {rank} of {size} {engine} compared {compared}", flush=True)
