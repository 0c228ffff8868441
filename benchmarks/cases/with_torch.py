"""The contestants' work as torch does it: eager or compiled, with images contiguous or channels last."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .measure import Ready
from .networks import Supply, Task
from .peers import need
from .with_weft import STEPS


class TorchOps:
    """The words of the networks."""

    def __init__(self) -> None:
        self.f = need("torch").nn.functional

    def conv(self, x: Any, w: Any, b: Any = None, stride: int = 1, padding: int = 0) -> Any:
        return self.f.conv2d(x, w, b, stride=stride, padding=padding)

    def linear(self, x: Any, w: Any, b: Any) -> Any:
        return self.f.linear(x, w, b)

    def relu(self, x: Any) -> Any:
        return self.f.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.f.gelu(x, approximate="tanh")

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def max_pool(self, x: Any, size: int, stride: int, padding: int = 0) -> Any:
        return self.f.max_pool2d(x, size, stride, padding)

    def mean_pool(self, x: Any) -> Any:
        return x.mean((2, 3))

    def flatten(self, x: Any) -> Any:
        return x.flatten(1)

    def batch_norm(self, x: Any, scale: Any, shift: Any, mean: Any, var: Any) -> Any:
        return self.f.batch_norm(x, mean, var, scale, shift, training=True, momentum=0.1)


def _laid_out(tensor: Any, last: bool) -> Any:
    torch = need("torch")
    return tensor.contiguous(memory_format=torch.channels_last) if last and tensor.ndim == 4 else tensor


def module(task: Task, last: bool, forward: Callable[..., Any] | None = None) -> Any:
    """The network as a torch module, with the task's parameters."""
    torch = need("torch")
    ops, base = TorchOps(), torch.nn.Module
    run = forward or (lambda supply, x: task.network(ops, supply, x))

    class Net(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            tensors = (_laid_out(torch.from_numpy(p.copy()), last) for p in task.fresh.parameters)
            self.weights = torch.nn.ParameterList([torch.nn.Parameter(t) for t in tensors])
            for i, s in enumerate(task.fresh.statistics):
                self.register_buffer(f"statistic{i}", torch.from_numpy(s.copy()))

        def forward(self, x: Any) -> Any:
            statistics = [getattr(self, f"statistic{i}") for i in range(len(task.fresh.statistics))]
            return run(Supply(list(self.weights), statistics), x)

    return Net()


class Trained:
    """A network with its parameters and optimizer, and the step that trains it."""

    def __init__(self, task: Task, *, compiled: bool = False, last: bool = False, forward: Any = None) -> None:
        torch = need("torch")
        self.start, self.net = task.fresh.parameters, module(task, last, forward)
        x, y = (torch.from_numpy(a) for a in task.batch())
        self.x, self.y = _laid_out(x, last), y
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=task.rate, momentum=task.momentum, fused=True)

        def loss(x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.net(x), y)

        self.loss = torch.compile(loss, dynamic=False) if compiled else loss

    def call(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.x, self.y)
        value.backward()
        self.optimizer.step()
        return value

    def compile(self) -> float:
        """The seconds it takes to compile forward and backward: the first call less a later one."""
        start = time.perf_counter()
        self.call()
        middle = time.perf_counter()
        self.call()
        return 2 * middle - start - time.perf_counter()

    def values(self) -> list[np.ndarray]:
        losses = [self.call().detach().numpy() for _ in range(STEPS)]
        after = [p.detach().numpy() for p in self.net.parameters()]
        changes = [p - s for p, s in zip(after, self.start, strict=True)]
        return [np.stack(losses), *changes, *(b.numpy() for b in self.net.buffers())]


def training(task: Task, *, compiled: bool = False, last: bool = False, forward: Any = None) -> Ready:
    made = Trained(task, compiled=compiled, last=last, forward=forward)
    return Ready(made.call, made.values)


def inference(task: Task, *, compiled: bool = False, last: bool = False) -> Ready:
    torch = need("torch")
    net = module(task, last).eval().requires_grad_(False)
    x = _laid_out(torch.from_numpy(task.batch()[0]), last)
    call = torch.compile(net, dynamic=False, options={"freezing": True}) if compiled else net

    def run() -> Any:
        with torch.inference_mode() if not compiled else torch.no_grad():
            return call(x)

    return Ready(run, lambda: [run().numpy()])


def function(f: Callable[..., Any], arrays: Sequence[np.ndarray], last: bool = False) -> Ready:
    """A function of tensors that gives a list of tensors, run eagerly."""
    torch = need("torch")
    inputs = [_laid_out(torch.from_numpy(a), last) for a in arrays]

    def run() -> Any:
        with torch.inference_mode():
            return f(*inputs)

    return Ready(run, lambda: [t.contiguous().numpy() for t in run()])


def lstm_forward() -> Callable[..., Any]:
    """torch's own LSTM, the fastest way it has, and a classifier of the last output."""
    torch = need("torch")

    def forward(supply: Supply, x: Any) -> Any:
        weights = [supply.weight() for _ in range(4)]
        w_out, b_out = supply.weight(), supply.weight()
        start = x.new_zeros(1, x.shape[1], weights[1].shape[1])
        _, h, _ = torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, False)
        return torch.nn.functional.linear(h[0], w_out, b_out)

    return forward
