"""The contestants' work as weft does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import weft

from .measure import Ready
from .networks import Supply, Task

STEPS = 2  # of training, before the parameters are compared


class WeftOps:
    """The words of the networks."""

    def conv(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0) -> Any:
        return weft.conv(x, w, b, stride=stride, padding=padding)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return x @ w.T + b

    def relu(self, x: Any) -> Any:
        return weft.relu(x)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def max_pool(self, x: Any, size: int, stride: int, padding: int = 0) -> Any:
        return weft.max_pool(x, size, stride=stride, padding=padding)

    def mean_pool(self, x: Any) -> Any:
        return weft.global_avg_pool(x)

    def flatten(self, x: Any) -> Any:
        return x.reshape((x.shape[0], -1))

    def batch_norm(self, x: Any, scale: Any, shift: Any, mean: Any, var: Any) -> Any:
        """With the batch's statistics; the running ones move by a tenth, the variance as that of a sample."""
        normal = weft.batch_norm(x, scale, shift)
        count = x.shape[0] * x.shape[2] * x.shape[3]
        mean.assign(0.9 * mean + 0.1 * normal.mean.detach())
        var.assign(0.9 * var + (0.1 * count / (count - 1)) * normal.var.detach())
        return normal.value


class Trained:
    """A network with its parameters, and the step that trains it as one compiled function."""

    def __init__(self, task: Task, loss: Callable[..., Any] | None = None) -> None:
        self.start = task.fresh.parameters
        self.parameters = [weft.parameter(p) for p in self.start]
        self.statistics = [weft.asarray(s) for s in task.fresh.statistics]
        self.momenta = [weft.zeros(p.shape) for p in self.start] if task.momentum else []
        self.inputs = [weft.asarray(a) for a in task.batch()]
        self.step = weft.jit(self._step(task, loss or _cross_entropy(task)))

    def _step(self, task: Task, loss: Callable[..., Any]) -> Callable[..., Any]:
        def step(x: Any, y: Any) -> Any:
            value = loss(Supply(self.parameters, self.statistics), x, y)
            gradients = weft.gradients(value, self.parameters)
            for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
                if task.momentum:
                    self.momenta[i].assign(task.momentum * self.momenta[i] + g)
                    g = self.momenta[i]
                p.assign(p - task.rate * g)
            return value

        return step

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
        changes = [p.numpy() - s for p, s in zip(self.parameters, self.start, strict=True)]
        return [np.stack(losses), *changes, *(s.numpy() for s in self.statistics)]

    def planned_bytes(self) -> int:
        """All memory a step uses: what lives during it, and what it is given and changes."""
        self.call()
        [compiled] = self.step._compiled.values()
        held = [*self.parameters, *self.statistics, *self.momenta, *self.inputs]
        return int(compiled.executable.facts.arena) + sum(t.numpy().nbytes for t in held)


def _cross_entropy(task: Task) -> Callable[..., Any]:
    return lambda supply, x, y: weft.cross_entropy(task.network(WeftOps(), supply, x), y)


def training(task: Task, loss: Callable[..., Any] | None = None) -> Ready:
    made = Trained(task, loss)
    return Ready(made.call, made.values)


def inference(task: Task) -> Ready:
    parameters = [weft.asarray(p) for p in task.fresh.parameters]
    x = weft.asarray(task.batch()[0])
    step = weft.jit(lambda x: task.network(WeftOps(), Supply(parameters), x))
    return Ready(lambda: step(x), lambda: [step(x).numpy()])


def function(f: Callable[..., Any], arrays: Sequence[np.ndarray]) -> Ready:
    """A function of arrays that gives a list of tensors."""
    compiled, inputs = weft.jit(f), [weft.asarray(a) for a in arrays]
    return Ready(lambda: compiled(*inputs), lambda: [t.numpy() for t in compiled(*inputs)])


def lstm_loss(supply: Supply, x: Any, y: Any) -> Any:
    """A layer of long short-term memory over (time, batch, features), and a classifier of its last output."""
    w_in, w_hidden, b_in, b_hidden = (supply.weight() for _ in range(4))
    w_out, b_out = supply.weight(), supply.weight()
    start = weft.zeros((x.shape[1], w_hidden.shape[1]))

    def cell(carry: Any, given: Any) -> Any:
        h, c = carry
        i, f, g, o = weft.split(given + h @ w_hidden.T, 4, axis=1)
        c = weft.sigmoid(f) * c + weft.sigmoid(i) * weft.tanh(g)
        return (weft.sigmoid(o) * weft.tanh(c), c), None

    (h, _), _ = weft.scan(cell, (start, start), x @ w_in.T + (b_in + b_hidden))
    return weft.cross_entropy(h @ w_out.T + b_out, y)
