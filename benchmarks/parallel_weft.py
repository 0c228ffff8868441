"""weft's side of benchmarks/parallel.py."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import numpy as np
from parallel_cases import CHANNELS, SIZES, batch_of, repeats, seconds, timed

import weft
from weft import nn, optim, parallel, zoo


def step_times(n: int, names: list[str], exchange: bool = True) -> dict[str, float]:
    """The time of a step of each network in the slowest of n ranks; without `exchange` they do not average, only run at the same time."""
    with parallel.RankPool(n, threads=1) as pool:
        return {name: max(pool.run(_step, name, n, exchange)) for name in names}


def _step(name: str, n: int, exchange: bool) -> float:
    mesh = parallel.Mesh(data=n)
    weft.seed(0)
    model = network(name)
    x, y = batch_of(name, mesh.index("data"))
    model(x[:1])
    optimizer = optim.sgd(model, rate=0.01, momentum=0.9, axis="data" if exchange else None)

    @weft.jit
    def step(x: Any, y: Any) -> Any:
        loss = weft.cross_entropy(model(x), y)
        optimizer.minimize(loss)
        return loss

    return timed(lambda: step(x, y).numpy(), lambda wish: int(parallel.broadcast(wish, "data").item()))


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


def reduce_times(n: int) -> dict[str, float]:
    """The time of an all-reduce of each size in the slowest of n ranks."""
    with parallel.RankPool(n, threads=1) as pool:
        found = pool.run(_reduce, n)
    return {size: max(one[size] for one in found) for size in found[0]}


def _reduce(n: int) -> dict[str, float]:
    parallel.Mesh(data=n)
    found = {}
    for size in SIZES:
        x = weft.asarray(np.ones(size // 4, np.float32)).realize()
        call = weft.jit(lambda x: parallel.all_reduce(x, "data"))
        for _ in range(3):
            call(x)
        found[str(size)] = median(seconds(partial(call, x)) for _ in range(repeats(size)))
    return found
