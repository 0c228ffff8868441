"""NCCL with the one rank that a single GPU allows: every collective is recorded with everything else, and gives what it was given."""

import numpy as np
import pytest
from gpu_tools import DEVICE

import weft
from rank_tools import mesh_of
from test_collectives import collectives_of_one_process
from weft import nn, optim

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="NCCL needs a GPU")
pytest.importorskip("nccl.bindings.nccl")


def test_collectives_of_one_process() -> None:
    kept, left_out = collectives_of_one_process(True), collectives_of_one_process(False)
    assert all(map(np.array_equal, kept, left_out))


def test_a_training_step() -> None:
    def trained(axis: str | None) -> list[np.ndarray]:
        mesh = mesh_of(data=1)
        mesh.keeps_single = axis is not None
        weft.seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))
        optimizer = optim.adam(model, rate=1e-2, axis=axis)

        @weft.jit
        def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
            loss = weft.cross_entropy(model(x), y)
            optimizer.minimize(loss)
            return loss

        rng = np.random.default_rng(0)
        for _ in range(6):
            step(rng.normal(size=(32, 20)).astype(np.float32), rng.integers(0, 5, 32))
        return [p.numpy() for p in model.parameters()]

    try:
        for a, b in zip(trained("data"), trained(None), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    finally:
        mesh_of(data=1).keeps_single = False
