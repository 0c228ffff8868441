"""weft and torch ready to train or run one network of the sweep, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import weft
from weft import optim

from . import twins
from . import zoo_twins as _known
from .zoo_networks import ZooNetwork, logits

assert _known  # it makes the twins of the zoo known

RATE, MOMENTUM = 1e-3, 0.9
STEPS = 2  # before losses and parameters are compared


@dataclass
class Work:
    """A contestant's work: `call` may only begin it, `wait` returns when it is done."""

    call: Callable[[], Any]
    wait: Callable[[], Any]
    values: Callable[[], Sequence[np.ndarray]]


def contestants(network: ZooNetwork, training: bool, device: str, compiled: bool) -> dict[str, Callable[[], Work]]:
    """How each contestant gets ready; peers first, weft last."""
    kind = _TorchTraining if training else _TorchInference
    found: dict[str, Callable[[], Work]] = {"torch": lambda: kind(network, device).work()}
    if network.is_image:
        found["torch last"] = lambda: kind(network, device, last=True).work()
    if compiled:
        found["torch compiled"] = lambda: kind(network, device, compiled=True, last=network.is_image).work()
    found["weft"] = lambda: (WeftTraining if training else WeftInference)(network, device).work()
    return found


class WeftTraining:
    """A network with its parameters, and the step that trains it as one compiled function."""

    def __init__(self, network: ZooNetwork, device: str) -> None:
        weft.knobs.device = device
        self.device, self.model = device, network.model()
        self.axis = 1 if network.dense else -1
        self.inputs = [weft.asarray(a) for a in network.batch()]
        self.pairs = twins.twin(self.model).pairs
        self.start = twins.values(self.pairs)
        self.optimizer = optim.sgd(self.model, RATE, momentum=MOMENTUM)
        self.step = weft.jit(self._step)

    def _step(self, x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        loss = weft.cross_entropy(logits(self.model(x)), y, axis=self.axis)
        self.optimizer.minimize(loss)
        return loss

    def call(self) -> Any:
        return self.step(*self.inputs)

    def explain(self) -> Any:
        return self.step.explain(*self.inputs)

    def values(self) -> list[np.ndarray]:
        losses = [self.call().numpy() for _ in range(STEPS)]
        now = twins.values(self.pairs)
        return [np.stack(losses), np.concatenate([(n - s).reshape(-1) for n, s in zip(now, self.start, strict=True)])]

    def work(self) -> Work:
        return Work(self.call, lambda: _wait_weft(self.device), self.values)


class WeftInference:
    def __init__(self, network: ZooNetwork, device: str) -> None:
        weft.knobs.device = device
        self.device, self.model = device, network.model().eval()
        self.x = weft.asarray(network.batch()[0])
        self.step = weft.jit(lambda x: logits(self.model(x)))

    def call(self) -> Any:
        return self.step(self.x)

    def explain(self) -> Any:
        return self.step.explain(self.x)

    def work(self) -> Work:
        return Work(self.call, lambda: _wait_weft(self.device), lambda: [self.call().numpy()])


class _TorchTraining:
    def __init__(self, network: ZooNetwork, device: str, *, compiled: bool = False, last: bool = False) -> None:
        made = twins.twin(network.model())
        self.start = twins.values(made.pairs)
        self.device, self.twin = device, made
        self.net = _laid_out(made.net.to(device), last)
        x, y = (torch.from_numpy(a).to(device) for a in network.batch())
        self.x, self.y = _laid_out(x, last), y
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

        def loss(x: Any, y: Any) -> Any:
            return twins.cross_entropy(self.net(x), y)

        self.loss = torch.compile(loss, dynamic=False, mode=_mode(device)) if compiled else loss

    def call(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.x, self.y)
        value.backward()
        self.optimizer.step()
        return value

    def values(self) -> list[np.ndarray]:
        losses = [self.call().detach().cpu().numpy().copy() for _ in range(STEPS)]
        return [np.stack(losses), self.twin.changes(self.start)]

    def work(self) -> Work:
        return Work(self.call, lambda: _wait_torch(self.device), self.values)


class _TorchInference:
    def __init__(self, network: ZooNetwork, device: str, *, compiled: bool = False, last: bool = False) -> None:
        net = _laid_out(twins.twin(network.model()).net.to(device).eval().requires_grad_(False), last)
        self.device, self.x = device, _laid_out(torch.from_numpy(network.batch()[0]).to(device), last)
        self.net, self.mode = net, torch.no_grad if compiled else torch.inference_mode
        if compiled:
            options = {"options": {"freezing": True}} if device == "cpu" else {"mode": _mode(device)}
            self.net = torch.compile(net, dynamic=False, **options)

    def call(self) -> Any:
        with self.mode():
            return self.net(self.x)

    def work(self) -> Work:
        return Work(self.call, lambda: _wait_torch(self.device), lambda: [self.call().cpu().numpy()])


def _laid_out(thing: Any, last: bool) -> Any:
    """A module or an image, channels last or as it is."""
    if not last or (isinstance(thing, torch.Tensor) and thing.ndim != 4):
        return thing
    return thing.to(memory_format=torch.channels_last)


def _mode(device: str) -> str | None:
    return None if device == "cpu" else "reduce-overhead"  # with CUDA graphs


def _wait_torch(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _wait_weft(device: str) -> None:
    if device != "cpu":
        weft.runtime.cuda.synchronize()
