"""The contestants' work as weft does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft
from weft import nn, optim, zoo
from weft.nn.module import own_tensors

from . import networks
from .measure import Ready
from .networks import Network, Task

STEPS = 2  # of training, before the parameters are compared


class Cifar(nn.Sequential):
    """Two pairs of convolutions and two linear layers."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 32), (32, 32), (32, 64), (64, 64)):
            layers.append(nn.Conv2d(inputs, outputs, 3, padding=1, activation="relu"))
            if inputs == outputs:
                layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.Flatten(), nn.Linear(4096, 512, activation="relu"), nn.Linear(512, 10))


class Lstm(nn.Module):
    """A layer of long short-term memory over (time, batch, features), and a classifier of its last output."""

    def __init__(self) -> None:
        self.lstm, self.classifier = nn.LSTM(64, 128, batch_first=False), nn.Linear(128, 10)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        outputs, _ = self.lstm(x)
        scores: weft.Tensor = self.classifier(outputs[-1])
        return scores


class FeedForward(nn.Sequential):
    """Two pairs of layers with a gelu between them."""

    def __init__(self) -> None:
        super().__init__(*(nn.FeedForward(768, activation=nn.GELU(approximate=True)) for _ in range(2)))


MODELS: dict[Network, Callable[[], nn.Module]] = {
    networks.mlp: zoo.lenet_300_100,
    networks.feed_forward: FeedForward,
    networks.lenet: lambda: zoo.lenet5_classic(activation="relu", pooling="max"),
    networks.cifar_cnn: Cifar,
    networks.resnet18: zoo.resnet18_cifar,
    networks.lstm: Lstm,
    networks.alexnet: zoo.alexnet,
    networks.vgg16: zoo.vgg16,
    networks.resnet50: zoo.resnet50,
}


def model_of(task: Task) -> nn.Module:
    """The network with the parameters that all contestants begin with, which stand in the order of its layers."""
    model = MODELS[task.network]()
    values = iter(task.fresh.parameters)
    folded = task.network is networks.resnet50  # its norms are in the filters and biases of the others
    for module in model.modules():
        if isinstance(module, nn.BatchNorm) and folded:
            assert module.shift is not None
            module.shift.assign(weft.asarray(next(values)))
            module.var.assign(module.var - module.eps)
        else:
            for name, tensor in own_tensors(module):
                if tensor.requires_grad:
                    tensor.assign(weft.asarray(_shaped(next(values), tensor.shape, name)))
    assert next(values, None) is None, "parameters are left"
    return model


def _shaped(value: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
    assert value.shape == shape, f"{name} is {shape}, not {value.shape}"
    return value


class Trained:
    """A network with its parameters, and the step that trains it as one compiled function."""

    def __init__(self, task: Task) -> None:
        self.model = model_of(task)
        self.start = task.fresh.parameters
        self.optimizer = optim.sgd(self.model, task.rate, momentum=task.momentum)
        self.inputs = [weft.asarray(a) for a in task.batch()]
        self.step = weft.jit(self._step)

    def _step(self, x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(self.model(x), y)
        self.optimizer.minimize(loss)
        return loss

    def call(self) -> Any:
        return self.step(*self.inputs)

    def compile(self) -> float:
        """The seconds it takes to trace, compile and load."""
        start = time.perf_counter()
        self.step.lower(*self.inputs)
        return time.perf_counter() - start

    def values(self) -> list[np.ndarray]:
        """The losses of some steps, how they changed every parameter, and the statistics."""
        losses = [self.call().numpy() for _ in range(STEPS)]
        changes = [p.numpy() - s for p, s in zip(self.model.parameters(), self.start, strict=True)]
        return [np.stack(losses), *changes, *(s.numpy() for s in self.model.named_state().values())]

    def planned_bytes(self) -> int:
        """All memory a step uses: what lives during it, and what it is given and changes."""
        self.call()
        [compiled] = self.step.programs.latest.values()
        held = [*self.model.named_tensors().values(), *self.optimizer.named_state().values(), *self.inputs]
        return int(compiled.executable.facts.arena) + sum(t.numpy().nbytes for t in held)


def training(task: Task) -> Ready:
    made = Trained(task)
    return Ready(made.call, made.values)


def inference(task: Task) -> Ready:
    model, x = model_of(task).eval(), weft.asarray(task.batch()[0])
    step = weft.jit(lambda x: model(x))
    return Ready(lambda: step(x), lambda: [step(x).numpy()])


def function(f: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ready:
    """A function of arrays that gives a list of tensors."""
    compiled, inputs = weft.jit(f), [weft.asarray(a) for a in arrays]
    return Ready(lambda: compiled(*inputs), lambda: [t.numpy() for t in compiled(*inputs)])
