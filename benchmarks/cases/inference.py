"""Inference of well-known networks for 224 x 224 images, with random weights: the time does not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import networks, with_jax, with_onnx, with_torch, with_weft
from .measure import Case, Ready
from .networks import Task

GROUP = "inference"
ONE_CORE = "inference on one core"


def _task(network: networks.Network, batch: int) -> Task:
    return Task(network, (batch, 3, 224, 224), classes=1000)


TASKS: dict[str, tuple[Task, float]] = {
    "AlexNet, batch 1": (_task(networks.alexnet, 1), 1.1),
    "AlexNet, batch 16": (_task(networks.alexnet, 16), 1.3),
    "VGG-16, batch 1": (_task(networks.vgg16, 1), 1.8),
    "ResNet-50, batch 1": (_task(networks.resnet50, 1), 1.15),
}


def cases(quick: bool, threads: int) -> Iterator[Case]:
    for name, (task, goal) in TASKS.items():
        yield _case(GROUP, name, task, goal, quick)
    if threads == 1:
        yield _case(ONE_CORE, "AlexNet, batch 16", TASKS["AlexNet, batch 16"][0], 30 / 21, quick)


def _case(group: str, name: str, task: Task, goal: float, quick: bool) -> Case:
    contestants: dict[str, Callable[[], Ready]] = {
        "torch": lambda: with_torch.inference(task),
        "torch last": lambda: with_torch.inference(task, last=True),
    }
    if not quick:
        contestants["torch compiled"] = lambda: with_torch.inference(task, compiled=True)
        contestants["torch compiled last"] = lambda: with_torch.inference(task, compiled=True, last=True)
        contestants["jax"] = lambda: with_jax.inference(task)
    contestants["onnxruntime"] = lambda: with_onnx.inference(task)
    contestants["weft"] = lambda: with_weft.inference(task)
    return Case(group, name, contestants, task.layers, goal, items=task.shape[0])
