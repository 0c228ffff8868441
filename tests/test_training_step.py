"""A compiled training step of a network with an optimizer is one native call, and the optimizer hardly a kernel in it."""

from typing import Any

import numpy as np
import pytest

import weft
from weft import nn, optim
from weft.runtime.team import Team

RNG = np.random.default_rng(0)
NETWORKS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(20, 32, activation="relu"), nn.Linear(32, 16, activation="tanh"), nn.Linear(16, 4)),
        (8, 20),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, activation="relu"),
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(None, 4),
        ),
        (8, 1, 10, 10),
    ),
}  # fmt: skip
OPTIMIZERS = {
    "sgd": lambda ps: optim.sgd(ps, 0.1),
    "momentum": lambda ps: optim.sgd(ps, 0.1, momentum=0.9, weight_decay=1e-4),
    "adam": lambda ps: optim.adam(ps, 1e-3),
    "adamw": lambda ps: optim.adamw(ps, optim.schedules.cosine(1e-3, 100)),
    "clipped": lambda ps: optim.adam(ps, 1e-3, clip_norm=1.0),
}


def example(shape: tuple[int, ...]) -> tuple[weft.Tensor, weft.Tensor]:
    x = weft.asarray(RNG.normal(size=shape).astype("float32"))
    return x, weft.asarray(RNG.integers(0, 4, shape[0]))


def program(step: Any, *args: Any) -> Any:
    step(*args)
    [made] = step.programs.latest.values()
    return made.executable.program


@pytest.mark.sweep("name", share=1.0)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_is_not_more_than_one_kernel(network: str, name: str) -> None:
    make, shape = NETWORKS[network]
    model, (x, y) = make(), example(shape)
    model(x)
    optimizer = OPTIMIZERS[name](model)

    @weft.jit
    def with_optimizer(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    @weft.jit
    def gradients_alone(x: weft.Tensor, y: weft.Tensor) -> Any:
        loss = weft.cross_entropy(model(x), y)
        return loss, weft.gradients(loss, model.parameters())

    extra = program(with_optimizer, x, y).launches - program(gradients_alone, x, y).launches
    # A schedule is a few numbers more, once a step. The norm of all gradients must be known before the first of them is used: it
    # is a kernel of its own, and then all updates are one.
    assert extra <= {"clipped": 3, "adamw": 2}.get(name, 1)


def test_a_step_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = NETWORKS["cnn"]
    model, (x, y) = make(), example(shape)
    model(x)
    optimizer = optim.adam(model, optim.schedules.warmup(1e-2, 10), clip_norm=1.0, average=0.99)

    @weft.jit
    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    first = step(x, y).item()
    calls = []
    real = Team.run
    monkeypatch.setattr(Team, "run", lambda team, *args: (calls.append(1), real(team, *args))[1])
    for _ in range(20):
        last = step(x, y)
    assert len(calls) == 20
    assert last.item() < first
    assert optimizer.steps.item() == 21
