"""torch's side of benchmarks/parallel.py: DistributedDataParallel over gloo, eager, in channels-last layout."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from parallel_cases import CHANNELS, SIZES, batch_of, repeats, seconds, timed


def step_times(n: int, names: list[str]) -> dict[str, float]:
    """The time of a step of each network in the slowest of n ranks."""
    return _in_ranks(_steps, n, names)


def reduce_times(n: int) -> dict[str, float]:
    """The time of an all-reduce of each size in the slowest of n ranks."""
    return _in_ranks(_reduces, n, [])


def _in_ranks(function: Callable[..., Any], n: int, names: list[str]) -> dict[str, float]:
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (n, _free_port(), function, names, folder), nprocs=n)
        found = [json.loads(Path(f"{folder}/{rank}").read_text()) for rank in range(n)]
    return {name: max(one[name] for one in found) for name in found[0]}


def _rank(rank: int, n: int, port: int, function: Callable[..., Any], names: list[str], folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=n)
    Path(f"{folder}/{rank}").write_text(json.dumps(function(rank, n, names)))
    dist.destroy_process_group()


def _steps(rank: int, n: int, names: list[str]) -> dict[str, float]:
    return {name: _step(name, rank, n) for name in names}


def _step(name: str, rank: int, n: int) -> float:
    import torch
    import torch.distributed as dist

    torch.manual_seed(0)
    model = network(name)
    x, y = (torch.from_numpy(a) for a in batch_of(name, rank))
    if x.ndim == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    trained = torch.nn.parallel.DistributedDataParallel(model) if n > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()

    def agree(wish: int) -> int:
        number = torch.tensor(wish)
        dist.broadcast(number, 0)
        return int(number)

    return timed(step, agree)


def network(name: str) -> Any:
    """The same networks."""
    from torch import nn

    if name == "lenet5":
        return nn.Sequential(
            nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)
        )  # fmt: skip
    if name == "cifar_cnn":
        layers: list[Any] = []
        for a, b in CHANNELS:
            layers += [
                nn.Conv2d(a, b, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(b, b, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10))
    return _characters() if name == "lstm" else _resnet18()


def _characters() -> Any:
    import torch
    from torch import nn

    class Characters(nn.Module):  # type: ignore[misc]  # torch need not be installed
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(64, 64), nn.LSTM(64, 128, batch_first=True)
            self.head = nn.Linear(128, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(self.embedding(x))[0][:, -1])

    return Characters()


def _resnet18() -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
            )  # fmt: skip
            same = stride == 1 and a == b
            self.skip = (
                nn.Identity() if same else nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b))
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.skip(x))

    layers: list[Any] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for a, b, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(a, b, stride), Block(b, b, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def _reduces(rank: int, n: int, names: list[str]) -> dict[str, float]:
    import torch
    import torch.distributed as dist

    found = {}
    for size in SIZES:
        x = torch.ones(size // 4)
        for _ in range(3):
            dist.all_reduce(x)
        found[str(size)] = median(seconds(partial(dist.all_reduce, x)) for _ in range(repeats(size)))
    return found


def _free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])
