"""The contestants' work on a GPU as torch does it: eagerly, compiled, or captured in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from cases import with_torch
from cases.networks import Task
from cases.peers import need
from gpu_measure import Contestant, Place

EAGER, COMPILED, GRAPH = "eager", "compiled", "graph"


def settle(tf32: bool) -> None:
    """The fastest that is right: cuDNN may choose by measuring; TF32 as the row says."""
    torch = need("torch")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def wait() -> None:
    if Place.is_gpu():
        need("torch").cuda.synchronize()


def free() -> None:
    """Forget compiled programs, and give back what the allocator keeps: the next row begins as in a new process.

    After a row of training, torch.compile ran inference in the same process without its CUDA graphs.
    """
    if Place.is_gpu():
        need("torch").compiler.reset()
        need("torch").cuda.empty_cache()


class Peak:
    """The most bytes torch has had in use since it was made, less what was there before."""

    def __init__(self) -> None:
        if Place.is_gpu():
            need("torch").cuda.reset_peak_memory_stats()
            self.before = need("torch").cuda.memory_allocated()

    def __call__(self) -> float:
        return float(need("torch").cuda.max_memory_allocated() - self.before) if Place.is_gpu() else 0.0


class Captured:
    """Work as a CUDA graph: a call replays it, and gives where its result stands."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work  # a graph knows addresses only: what it reads must not be given back while it can be replayed
        torch = need("torch")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # as torch asks
                work()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = work()

    def __call__(self) -> Any:
        self.graph.replay()
        return self.result


class Trained:
    """A network with its parameters and optimizer, and the step that trains it."""

    def __init__(self, task: Task, way: str = EAGER, precision: str | None = None, last: bool = False) -> None:
        torch = need("torch")
        self.start, self.task, self.way = task.fresh.parameters, task, way
        self.net = with_torch.module(task, last).to(Place.device)
        x, y = (torch.from_numpy(a).to(Place.device) for a in task.batch())
        self.x, self.y = with_torch._laid_out(x, last), y
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=task.rate, momentum=task.momentum, fused=True)
        kind = None if precision is None else getattr(torch, precision)

        def loss(x: Any, y: Any) -> Any:
            # A captured step must not find casts that an earlier one has kept.
            mixed = torch.autocast(Place.device, kind, cache_enabled=way != GRAPH) if kind else nullcontext()
            with mixed:
                return torch.nn.functional.cross_entropy(self.net(x), y)

        self.loss = torch.compile(loss, dynamic=False, mode="reduce-overhead") if way == COMPILED else loss
        self.captured = None
        if way == GRAPH:
            self.captured = Captured(self._step)
            self._begin_again()

    def _step(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.x, self.y)
        value.backward()
        self.optimizer.step()
        return value

    def _begin_again(self) -> None:
        """As if the steps before capturing had not been made."""
        torch = need("torch")
        with torch.no_grad():
            for tensor, value in zip(self.net.parameters(), self.start, strict=True):
                tensor.copy_(torch.from_numpy(value))
            for tensor, value in zip(self.net.buffers(), self.task.fresh.statistics, strict=True):
                tensor.copy_(torch.from_numpy(value))
            for state in self.optimizer.state.values():
                for tensor in state.values():
                    if isinstance(tensor, torch.Tensor):
                        tensor.zero_()

    def call(self) -> Any:
        if self.captured is not None:
            return self.captured()
        if self.way == COMPILED:
            need("torch").compiler.cudagraph_mark_step_begin()
        return self._step()

    def values(self) -> list[np.ndarray]:
        first = self._loss()
        after = [p.detach().cpu().numpy() for p in self.net.parameters()]
        changes = [(p - s).reshape(-1) for p, s in zip(after, self.start, strict=True)]
        return [np.stack([first, self._loss()]), np.concatenate(changes)]

    def _loss(self) -> np.ndarray:
        found: np.ndarray = self.call().detach().float().cpu().numpy().copy()
        return found


def training(task: Task, way: str = EAGER, precision: str | None = None, last: bool = False) -> Contestant:
    peak = Peak()
    made = Trained(task, way, precision, last)
    return Contestant(made.call, wait, made.values, peak)


def inference(task: Task, way: str = EAGER, precision: str | None = None, last: bool = False) -> Contestant:
    torch, peak = need("torch"), Peak()
    kind = torch.float32 if precision is None else getattr(torch, precision)
    net = with_torch.module(task, last).to(Place.device, kind).eval().requires_grad_(False)
    x = with_torch._laid_out(torch.from_numpy(task.batch()[0]).to(Place.device, kind), last)
    chosen = torch.compile(net, dynamic=False, mode="reduce-overhead") if way == COMPILED else net

    def run() -> Any:
        if way == COMPILED:
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad() if way == COMPILED else torch.inference_mode():
            return chosen(x)

    call = Captured(run) if way == GRAPH else run
    return Contestant(call, wait, lambda: [call().float().cpu().numpy()], peak)


def tensor(pattern: np.ndarray, shape: Sequence[int], dtype: str, last: bool = False) -> Any:
    """A tensor of the shape, filled with the pattern over and over."""
    torch = need("torch")
    size = int(np.prod(shape))
    few = torch.from_numpy(pattern).to(Place.device, getattr(torch, dtype))
    whole = few.repeat(-(-size // few.numel()))[:size].view(tuple(shape))
    return with_torch._laid_out(whole, last)


def function(f: Callable[..., Any], inputs: Sequence[Any], look: Callable[[Any], Any]) -> Contestant:
    """A function of tensors that gives one, run eagerly."""
    torch = need("torch")

    def run() -> Any:
        with torch.inference_mode():
            return f(*inputs)

    return Contestant(run, wait, lambda: [look(run()).float().cpu().contiguous().numpy()])
