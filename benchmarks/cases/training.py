"""Training steps: forward, backward and the update of all parameters (SGD with momentum), one call of each contestant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import networks, with_jax, with_torch, with_weft
from .measure import Case, Ready
from .networks import Task

GROUP = "training step"
LSTM = "LSTM, hidden 128, input 64, sequence 64, batch 32"

TASKS: dict[str, Task] = {
    "MLP 784-300-100-10, batch 64": Task(networks.mlp, (64, 784)),
    "MLP 784-300-100-10, batch 512": Task(networks.mlp, (512, 784)),
    "LeNet-5, batch 64": Task(networks.lenet, (64, 1, 28, 28)),
    "CIFAR CNN, batch 64": Task(networks.cifar_cnn, (64, 3, 32, 32)),
    "ResNet-18 for 32x32, batch 32": Task(networks.resnet18, (32, 3, 32, 32)),
    LSTM: Task(networks.lstm, (64, 32, 64), momentum=0.0, batch_axis=1),
}
GOALS = dict(zip(TASKS, (2.3, 1.3, 2.0, 2.0, 2.5, 2.5), strict=True))
# Of the difference of updates. Deeper networks have more relus that may open here and stay shut there.
ALLOWED = dict(zip(TASKS, (1e-3, 1e-3, 1e-3, 3e-2, 1e-1, 1e-3), strict=True))


def cases(quick: bool) -> Iterator[Case]:
    for name, task in TASKS.items():
        yield Case(
            GROUP, name, makers(name, quick), task.training_layers(), GOALS[name], quick=True, allowed=ALLOWED[name]
        )


def makers(name: str, quick: bool = False) -> dict[str, Callable[[], Ready]]:
    """How each contestant gets ready. A quick run leaves out torch.compile, which takes a minute for some."""
    return {who: (lambda m=made: _ready(m())) for who, made in trained(name, quick).items()}  # type: ignore[misc]


def _ready(made: Any) -> Ready:
    return Ready(made.call, made.values)


def trained(name: str, quick: bool = False) -> dict[str, Callable[[], Any]]:
    """For each contestant the network with its parameters and its step."""
    task = TASKS[name]
    if name == LSTM:
        return {
            "torch": lambda: with_torch.Trained(task, forward=with_torch.lstm_forward()),
            "jax": lambda: with_jax.Trained(task, forward=with_jax.lstm_forward),
            "weft": lambda: with_weft.Trained(task),
        }
    images = len(task.shape) == 4
    found: dict[str, Callable[[], Any]] = {"torch": lambda: with_torch.Trained(task)}
    if images:
        found["torch last"] = lambda: with_torch.Trained(task, last=True)
    if not quick:
        found["torch compiled"] = lambda: with_torch.Trained(task, compiled=True)
    if not quick and images:
        found["torch compiled last"] = lambda: with_torch.Trained(task, compiled=True, last=True)
    found["jax"] = lambda: with_jax.Trained(task)
    found["weft"] = lambda: with_weft.Trained(task)
    return found
