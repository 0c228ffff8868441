"""weft's side of benchmarks/parallel.py."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from parallel_cases import CHAIN, CHANNELS, batch_of, pin, times_of

import weft
from weft import nn, optim, parallel, zoo

_steps: dict[str, Any] = {}  # of this process: together with the others, and apart from them


def place(n: int) -> int:
    """Connect the processes and keep each on a core of its own, which is returned."""
    return pin(mesh_of(n).index("data"))


@cache
def mesh_of(n: int) -> parallel.Mesh:
    """One mesh for each process."""
    return parallel.Mesh(data=n)


def prepare(name: str, n: int) -> None:
    """Make the steps of a network and compile them."""
    for kind in ("apart", "together"):
        _steps[kind] = _step(name, n, kind == "together")
        _steps[kind]()


def _step(name: str, n: int, exchange: bool) -> Any:
    weft.seed(0)
    model = network(name)
    x, y = batch_of(name, mesh_of(n).index("data"))
    model(x[:1])
    optimizer = optim.sgd(model, rate=0.01, momentum=0.9, axis="data" if exchange else None)

    @weft.jit
    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return lambda: step(x, y).numpy()


def turn(kind: str, count: int) -> list[float]:
    """The times of so many steps; those of one rank "alone" are those of rank 0."""
    if kind == "alone":
        return times_of(_steps["apart"], count) if parallel.world().rank == 0 else []
    parallel.barrier("data")
    return times_of(_steps[kind], count)


def network(name: str) -> nn.Module:
    """A network by its name here."""
    if name == "cifar_cnn":
        layers: list[nn.Module] = []
        for a, b in CHANNELS:
            layers += [
                nn.Conv2d(a, b, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10))
    if name == "lstm":
        return Characters()
    return zoo.lenet5() if name == "lenet5" else zoo.resnet18_cifar()


class Characters(nn.Module):
    """The next of 64 characters, by an LSTM."""

    def __init__(self) -> None:
        self.embedding, self.lstm, self.head = nn.Embedding(64, 64), nn.LSTM(64, 128), nn.Linear(128, 64)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


def reduce(size: int, count: int, inside: bool) -> list[float]:
    """The times of all-reduces of so many bytes in place: of an array of the caller, or one of several inside of a compiled function."""
    call = _compiled_reductions(size) if inside else _array_reduction(size)
    parallel.barrier("data")
    return [t / (CHAIN if inside else 1) for t in times_of(call, count)]


@cache
def _array_reduction(size: int) -> Any:
    call = parallel.ArrayReduction(np.zeros(size // 4, np.float32), "data")
    call()
    return call


@cache
def _compiled_reductions(size: int) -> Any:
    x = weft.parameter(np.zeros(size // 4, np.float32))

    @weft.jit
    def several() -> None:
        for _ in range(CHAIN):
            x.assign(parallel.all_reduce(x, "data"))

    several()
    return several
