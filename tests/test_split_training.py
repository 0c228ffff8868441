"""Trainings whose network is split between processes (model:N, pipeline:N, and with data:N) against one process."""

import numpy as np
import pytest

import weft
from uncompiled import uncompiled
from weft import data, nn, train


def network():
    weft.seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(4 * 6 * 6, 16, activation="relu"),
        nn.Linear(16, 10),
    )  # fmt: skip


def fitted(parallel=None, micro_batches=4, epochs=2, device="reference", make=network, **settings):
    """The weights after a training, its history, and how it was split."""
    with uncompiled() if device == "reference" else weft.knobs.set(device=device):
        model, splits, told = make(), data.open_dataset("digits"), []
        result = train.fit(
            model, data.Subset(splits.train, np.arange(144)), data.Subset(splits.test, np.arange(90)), batch=48, epochs=epochs,
            **{"rate": 5e-2, "optimizer": "sgd", "momentum": 0.9, "seed": 1, "prepare": data.ToFloat(), **settings}, parallel=parallel, micro_batches=micro_batches, on_split=told.append,
        )  # fmt: skip
        return {name: t.numpy().copy() for name, t in model.named_tensors().items()}, result.history, told


def fitted_as(parallel, settings):
    return fitted(parallel, **settings)


def difference(a, b):
    assert list(a) == list(b)
    return max(float(np.abs(a[n] - b[n]).max()) for n in a)


def check(found, wanted, most=1e-6):
    """All processes have the whole network of one process, and its metrics."""
    for weights, history, _ in found:
        assert difference(weights, wanted[0]) <= most
        for mine, other in zip(history, wanted[1], strict=True):
            assert [mine[n] for n in mine if "accuracy" in n] == [other[n] for n in other if "accuracy" in n]
            assert mine["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)
            assert mine["validation_loss"] == pytest.approx(other["validation_loss"], rel=1e-5)


@pytest.fixture(scope="module")
def alone():
    return fitted()


@pytest.mark.parametrize(
    "parallel",
    ["model:2", "pipeline:2", "data:2,model:2", "data:2,pipeline:2", "pipeline:2,model:2", "model:4", "pipeline:4"],
)
def test_processes_that_share_a_network_train_like_one(shared_pools, alone, parallel):
    size = 2 if "," not in parallel and parallel.endswith("2") else 4
    found = shared_pools[size].run(fitted_as, parallel, {})
    check(found, alone)
