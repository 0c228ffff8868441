"""torch's side of benchmarks/parallel.py: DistributedDataParallel over gloo, eager, in channels-last layout."""

from __future__ import annotations

import os
import sys
from typing import Any

from parallel_cases import CHANNELS, batch_of, pin, times_of
from parallel_peers import PeerRanks, free_port, script, serve

_steps: dict[str, Any] = {}  # of this process: together with the others, and apart from them


def started(n: int) -> PeerRanks:
    """So many processes of one thread each, connected by gloo."""
    port = free_port()
    return PeerRanks([script("parallel_torch.py", rank, n, port) for rank in range(n)], n)


def _prepare(name: str) -> None:
    """Make the steps of a network."""
    _steps["apart"], _steps["together"] = _step(name, False), _step(name, True)


def _step(name: str, exchange: bool) -> Any:
    torch.manual_seed(0)
    model = network(name)
    x, y = (torch.from_numpy(a) for a in batch_of(name, dist.get_rank()))
    if x.ndim == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    trained = torch.nn.parallel.DistributedDataParallel(model) if exchange else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()

    return step


def _turn(kind: str, count: int) -> list[float]:
    """The times of so many steps; those of one rank "alone" are those of rank 0."""
    if kind == "alone":
        return times_of(_steps["apart"], count) if dist.get_rank() == 0 else []
    dist.barrier()
    return times_of(_steps[kind], count)


def _reduce(size: int, count: int) -> list[float]:
    x = torch.ones(size // 4)
    dist.all_reduce(x)
    dist.barrier()
    return times_of(lambda: dist.all_reduce(x), count)


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


if __name__ == "__main__":
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[3]}
    dist.init_process_group("gloo", rank=int(sys.argv[1]), world_size=int(sys.argv[2]))
    pin(int(sys.argv[1]))
    serve(sys.argv[4], int(sys.argv[1]), {"prepare": _prepare, "turn": _turn, "reduce": _reduce})
    dist.destroy_process_group()
