"""weft and torch ready to train or run one network of the sweep, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gpu_measure
import gpu_torch
import numpy as np
import torch

import weft
from weft import optim

from . import twins
from . import zoo_twins as _known
from .measure import difference
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


@dataclass(frozen=True)
class Place:
    """Where all contestants work, and in which numbers."""

    device: str = "cpu"
    precision: str = "float32"  # or tf32, bfloat16, float16

    @property
    def is_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def half(self) -> str | None:
        """The type of 16 bits, if there is one."""
        return self.precision if self.precision in ("bfloat16", "float16") else None

    def settle(self) -> None:
        """Prepare both libraries."""
        weft.knobs.device = self.device
        if not self.is_cpu:
            gpu_measure.Place.device = self.device
            gpu_torch.settle(self.precision == "tf32")
            weft.knobs.tf32 = int(self.precision == "tf32")


def contestants(network: ZooNetwork, training: bool, place: Place, compiled: bool) -> dict[str, Callable[[], Work]]:
    """How each contestant gets ready; peers first, weft last."""
    kind = _TorchTraining if training else _TorchInference
    found: dict[str, Callable[[], Work]] = {"torch": lambda: kind(network, place).work()}
    if network.is_image:
        found["torch last"] = lambda: kind(network, place, last=True).work()
    if not place.is_cpu:
        found["torch graph"] = lambda: kind(network, place, way=gpu_torch.GRAPH, last=network.is_image).work()
    if compiled:
        found["torch compiled"] = lambda: kind(network, place, way=gpu_torch.COMPILED, last=network.is_image).work()
    found["weft"] = lambda: weft_contestant(network, training, place).work()
    return found


def weft_contestant(network: ZooNetwork, training: bool, place: Place) -> WeftTraining | WeftInference:
    """weft's own."""
    return (WeftTraining if training else WeftInference)(network, place)


class WeftTraining:
    """A network with its parameters, and the step that trains it as one compiled function."""

    def __init__(self, network: ZooNetwork, place: Place) -> None:
        self.place, self.model = place, network.model()
        self.axis = 1 if network.dense else -1
        self.inputs = [weft.asarray(a) for a in network.batch()]
        self.pairs = twins.twin(self.model).pairs
        self.start = twins.values(self.pairs)
        self.optimizer = optim.sgd(self.model, RATE, momentum=MOMENTUM)
        self.step = weft.jit(self._step, precision=place.half)

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
        return Work(self.call, lambda: _wait_weft(self.place), self.values)


class WeftInference:
    def __init__(self, network: ZooNetwork, place: Place) -> None:
        self.network, self.place, self.model = network, place, network.model().eval()
        self.x = self._input(seed=0)
        self.step = weft.jit(self._step, precision=place.half)

    def _input(self, seed: int) -> weft.Tensor:
        x = weft.asarray(self.network.batch(seed)[0])
        return x.astype(self.place.half).realize() if self.place.half and not self.network.vocabulary else x

    def _step(self, x: weft.Tensor) -> weft.Tensor:
        found: weft.Tensor = logits(self.model(x))
        return found.astype(self.place.half) if self.place.half else found  # as torch gives it

    def call(self) -> Any:
        return self.step(self.x)

    def sensitivity(self) -> float:
        """The relative change of the results where the input is another one."""
        before, after = (self.step(x).astype("float64").numpy() for x in (self.x, self._input(seed=1)))
        return difference([before], [after])

    def explain(self) -> Any:
        return self.step.explain(self.x)

    def work(self) -> Work:
        return Work(self.call, lambda: _wait_weft(self.place), lambda: [self.call().astype("float32").numpy()])


class _TorchTraining:
    def __init__(self, network: ZooNetwork, place: Place, *, way: str = gpu_torch.EAGER, last: bool = False) -> None:
        made = twins.twin(network.model())
        self.start = twins.values(made.pairs)
        self.place, self.twin, self.way = place, made, way
        self.net = _laid_out(made.net.to(place.device), last)
        x, y = (torch.from_numpy(a).to(place.device) for a in network.batch())
        self.x, self.y = _laid_out(x, last), y
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
        self.loss = torch.compile(self._loss, dynamic=False, mode=_mode(place)) if way == gpu_torch.COMPILED else self._loss  # fmt: skip
        self.step = self._captured() if way == gpu_torch.GRAPH else self._step

    def _loss(self, x: Any, y: Any) -> Any:
        half = self.place.half
        kind = getattr(torch, half) if half else None
        caches = self.way != gpu_torch.GRAPH  # a captured step must not find casts that an earlier one has kept
        with torch.autocast(self.place.device, kind, enabled=half is not None, cache_enabled=caches):
            return twins.cross_entropy(self.net(x), y)

    def _step(self) -> Any:
        _mark(self.place, self.way)
        self.optimizer.zero_grad(set_to_none=True)
        value = self.loss(self.x, self.y)
        value.backward()
        self.optimizer.step()
        return value

    def _captured(self) -> Callable[[], Any]:
        """The step as a CUDA graph, as if the steps before capturing had not been made."""
        changed = [*self.net.parameters(), *self.net.buffers()]
        before = [t.detach().clone() for t in changed]
        made = gpu_torch.Captured(self._step)
        with torch.no_grad():
            for tensor, value in zip(changed, before, strict=True):
                tensor.copy_(value)
            for state in self.optimizer.state.values():
                for tensor in state.values():
                    if isinstance(tensor, torch.Tensor):
                        tensor.zero_()
        return made

    def values(self) -> list[np.ndarray]:
        losses = [self.step().detach().float().cpu().numpy().copy() for _ in range(STEPS)]
        return [np.stack(losses), self.twin.changes(self.start)]

    def work(self) -> Work:
        return Work(self.step, lambda: _wait_torch(self.place), self.values)


class _TorchInference:
    def __init__(self, network: ZooNetwork, place: Place, *, way: str = gpu_torch.EAGER, last: bool = False) -> None:
        self.place, self.way = place, way
        kind = getattr(torch, place.half) if place.half else None
        net = twins.twin(network.model()).net.to(place.device, kind).eval().requires_grad_(False)
        x = torch.from_numpy(network.batch()[0]).to(place.device)
        self.x, self.net = _laid_out(x.to(kind) if kind and not network.vocabulary else x, last), _laid_out(net, last)
        self.mode = torch.no_grad if way == gpu_torch.COMPILED else torch.inference_mode
        if way == gpu_torch.COMPILED:
            options = {"options": {"freezing": True}} if place.is_cpu else {"mode": _mode(place)}
            self.net = torch.compile(self.net, dynamic=False, **options)
        self.call = gpu_torch.Captured(self._call) if way == gpu_torch.GRAPH else self._call

    def _call(self) -> Any:
        _mark(self.place, self.way)
        with self.mode():
            return self.net(self.x)

    def work(self) -> Work:
        return Work(self.call, lambda: _wait_torch(self.place), lambda: [self.call().float().cpu().numpy()])


def _laid_out(thing: Any, last: bool) -> Any:
    """A module or an image, channels last or as it is."""
    if not last or (isinstance(thing, torch.Tensor) and thing.ndim != 4):
        return thing
    return thing.to(memory_format=torch.channels_last)


def _mode(place: Place) -> str | None:
    return None if place.is_cpu else "reduce-overhead"  # with CUDA graphs


def _mark(place: Place, way: str) -> None:
    """Results of the last call of a compiled function, which has recorded CUDA graphs, may be overwritten."""
    if way == gpu_torch.COMPILED and not place.is_cpu:
        torch.compiler.cudagraph_mark_step_begin()


def _wait_torch(place: Place) -> None:
    if not place.is_cpu:
        torch.cuda.synchronize()


def _wait_weft(place: Place) -> None:
    if not place.is_cpu:
        weft.runtime.cuda.synchronize()
