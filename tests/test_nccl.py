"""Collectives on GPUs: several processes, each with a fake GPU of its own, and a fake NCCL between them (see fake_nccl.py)."""

import numpy as np
import pytest

import weft
from rank_tools import mesh_of
from test_collectives import apply_all, cases_of, expected, gradients_of_all
from weft import nn, optim, parallel

pytest.importorskip("triton")
import fake_nccl


@pytest.fixture(params=[2, 4])
def pool(request, shared_pools):
    return shared_pools[request.param]


def on_gpus(function, late, *args):
    with fake_nccl.installed(late):
        return function(*args)


@pytest.mark.parametrize("late", [True, False])
def test_every_collective_gives_what_numpy_gives(pool, late):
    found = pool.run(on_gpus, apply_all, late, pool.size, True)
    for number, (shape, dtype) in enumerate(cases_of(pool.size, True)):
        for rank, wanted in enumerate(expected(pool.size, shape, dtype)):
            for got, want in zip(found[rank][number], wanted, strict=True):
                assert np.array_equal(got, np.asarray(want, np.float64)), (shape, dtype, rank)
