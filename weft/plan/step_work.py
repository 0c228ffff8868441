"""The work of a training step of one rank by layer: seconds, bytes of parameters and of activations, for any batch size.

    work = measured_work(step, batch=32)        # profiled here at two batch sizes
    work.on(machine("v100"))                    # projected to another machine

Times and activations are linear in the batch size, fitted to the two profiled sizes. So a smaller part of the batch, or a micro-batch, still
has the part of a step's time that does not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from math import prod
from typing import Any

from ..insight.layer_profile import KernelProfile, LayerProfile, summed
from ..insight.machines import DescribedMachine
from ..insight.memory_timeline import MemoryTimeline, memory_timeline
from ..insight.memory_values import ACTIVATIONS, CALL, OPTIMIZER, PARAMETERS, live_bytes
from ..insight.profile import ProgramProfile, profile
from ..insight.profile_record import block_of
from ..insight.projection import project
from ..records import dataclass
from ..tracing.jit import Jit

Step = Callable[[int], tuple[Jit[Any], tuple[Any, ...]]]  # for a batch size: a compiled training step and its arguments
Kernels = Sequence[KernelProfile]
UPDATE = "update"


@dataclass(frozen=True)
class BatchLine:
    """A quantity that is linear in the batch size.

    >>> BatchLine.through(10, 25.0, 20, 45.0)
    BatchLine(fixed=5.0, each=2.0)
    >>> BatchLine(5.0, 2.0).at(4)
    13.0
    """

    fixed: float = 0.0
    each: float = 0.0

    @classmethod
    def through(cls, batch: int, value: float, other: int, value_there: float) -> BatchLine:
        """The line through two points. Against noise, its slope and intercept are clamped to 0 or more; it then passes through the first point."""
        each = (value_there - value) / (other - batch)
        each = min(max(each, 0.0), value / batch)
        return cls(value - each * batch, each)

    def at(self, batch: float) -> float:
        return self.fixed + self.each * batch

    def __add__(self, other: BatchLine) -> BatchLine:
        return BatchLine(self.fixed + other.fixed, self.each + other.each)


@dataclass(frozen=True)
class LayerWork:
    """A block of layers: its part of a step, its memory, and its output."""

    name: str
    forward: BatchLine = BatchLine()  # seconds
    backward: BatchLine = BatchLine()
    parameters: float = 0.0  # bytes
    activations: BatchLine = BatchLine()  # bytes stored for the backward pass
    live: BatchLine = BatchLine()  # peak bytes in the arena while its backward pass runs
    output: float = 0.0  # bytes of the result per example
    split_sizes: tuple[
        tuple[float, float], ...
    ] = ()  # bytes of outputs and inputs of each part with parameters, per example

    @property
    def seconds(self) -> BatchLine:
        return self.forward + self.backward


@dataclass(frozen=True)
class StepWork:
    """The work of a step; see the top of this file."""

    layers: tuple[LayerWork, ...]  # in the order of the forward pass
    update: float  # seconds
    optimizer_state: float  # bytes
    forward_live: BatchLine = BatchLine()  # peak bytes in the arena during the forward pass
    inputs: BatchLine = BatchLine()  # bytes of arguments and results
    where: str = ""  # the machine whose times these are
    profiles: tuple[tuple[int, ProgramProfile], ...] = field(default=(), repr=False, compare=False)  # by batch size
    timelines: tuple[MemoryTimeline, ...] = field(default=(), repr=False, compare=False)

    @property
    def parameters(self) -> float:
        """Bytes of all parameters; gradients need as many."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def forward(self) -> BatchLine:
        return sum((layer.forward for layer in self.layers), BatchLine())

    @property
    def backward(self) -> BatchLine:
        return sum((layer.backward for layer in self.layers), BatchLine())

    def seconds(self, batch: float) -> float:
        """The time of a step of a single rank."""
        return (self.forward + self.backward).at(batch) + self.update

    def on(self, machine: DescribedMachine, format: str | None = None) -> StepWork:
        """The same with times projected to another machine; times that were given, not measured, already are those of that machine."""
        if not self.profiles:
            return self
        kernels = [(batch, project(found, machine, format).kernels) for batch, found in self.profiles]
        return work_of(self.profiles, self.timelines, kernels, machine.title)

    def changed(self, kernels: Callable[[ProgramProfile], Kernels], where: str) -> StepWork:
        """The same with other kernel times, if they were measured."""
        if not self.profiles:
            return self
        return work_of(self.profiles, self.timelines, [(b, kernels(found)) for b, found in self.profiles], where)


def measured_work(step: Step, batch: int, repeats: int | None = None) -> StepWork:
    """Profile a training step on this machine at a batch size and at another one.

    >>> import weft
    >>> from weft import nn, optim
    >>> def step(batch):
    ...     model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    ...     optimizer = optim.sgd(model, rate=0.1)
    ...     def train(x):
    ...         loss = (model(x) ** 2).mean()
    ...         optimizer.minimize(loss)
    ...         return loss
    ...     return weft.jit(train), (weft.ones((batch, 8)),)
    >>> work = measured_work(step, 4)
    >>> [layer.parameters for layer in work.layers[:3]]  # bytes
    [576.0, 0.0, 272.0]
    """
    profiles, timelines = [], []
    for size in (batch, other_batch(batch)):
        function, args = step(size)
        profiles.append((size, profile(function, *args, repeats=repeats)))
        timelines.append(memory_timeline(function, *args))
    kernels = [(size, found.kernels) for size, found in profiles]
    return work_of(profiles, timelines, kernels, profiles[0][1].where)


def other_batch(batch: int) -> int:
    """The second batch size to profile: a quarter, or 2 if the batch is a single example."""
    return max(1, batch // 4) if batch > 1 else 2


def work_of(
    profiles: Sequence[tuple[int, ProgramProfile]], timelines: Sequence[MemoryTimeline],
    kernels: Sequence[tuple[int, Kernels]], where: str,
) -> StepWork:  # fmt: skip
    """Combine the measurements at two batch sizes; the first one has priority."""
    (batch, found), (other, _) = profiles
    times = [_phase_times(summed(k, lambda scope: scope)) for _, k in kernels]
    activations, live = [_sizes(t, ACTIVATIONS) for t in timelines], [_arena_live(t) for t in timelines]
    parameters = _sizes(timelines[0], PARAMETERS)
    outputs = _outputs(found, batch)
    exchanged = _split_sizes(found, timelines[0], batch)
    names = dict.fromkeys([*outputs, *(name for name, phase in times[0] if phase != UPDATE), *parameters])

    def line(tables: Sequence[dict[Any, float]], key: Any) -> BatchLine:
        first = tables[0].get(key, 0.0)
        return BatchLine.through(batch, first, other, tables[1].get(key, first))

    layers = tuple(
        LayerWork(
            name, line(times, (name, "forward")), line(times, (name, "backward")), parameters.get(name, 0.0),
            line(activations, name), line(live, (name, "backward")), outputs.get(name, 0.0), tuple(exchanged.get(name, ())),
        )
        for name in names
    )  # fmt: skip
    update = sum(seconds for (_, phase), seconds in times[0].items() if phase == UPDATE)
    state = sum(_sizes(timelines[0], OPTIMIZER).values())
    forward = [{"": max((n for (_, phase), n in one.items() if phase == "forward"), default=0.0)} for one in live]
    passed = [{"": sum(_sizes(t, CALL).values())} for t in timelines]
    return StepWork(
        layers, update, state, line(forward, ""), line(passed, ""), where, tuple(profiles), tuple(timelines)
    )


def _phase_times(layers: Iterable[LayerProfile]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for layer in layers:
        key = block_of(layer.label), layer.phase
        found[key] = found.get(key, 0.0) + layer.seconds
    return found


def _sizes(timeline: MemoryTimeline, kind: str) -> dict[str, float]:
    """Bytes of one kind of memory by block."""
    found: dict[str, float] = {}
    for value in timeline.values:
        if value.kind == kind:
            block = block_of(value.layer)
            found[block] = found.get(block, 0.0) + value.nbytes
    return found


def _arena_live(timeline: MemoryTimeline) -> dict[tuple[str, str], float]:
    """Peak bytes in the arena while the kernels of a block run, by block and phase, including the arena's gaps."""
    shared = live_bytes([value for value in timeline.values if value.in_arena], len(timeline.kernels))
    totals = [sum(counts) for counts in zip(*shared.values(), strict=True)]
    gaps = timeline.arena / max([1, *totals])
    found: dict[tuple[str, str], float] = {}
    for kernel, nbytes in zip(timeline.kernels, totals, strict=True):
        key = block_of(kernel.layer), kernel.phase
        found[key] = max(found.get(key, 0.0), gaps * nbytes)
    return found


def _outputs(found: ProgramProfile, batch: int) -> dict[str, float]:
    """Bytes of the last result of each block per example, in the order of data flow."""
    return {block_of(layer.path): 4 * prod(layer.shape) / batch for layer in found.flow if layer.path}


def _split_sizes(found: ProgramProfile, timeline: MemoryTimeline, batch: int) -> dict[str, list[tuple[float, float]]]:
    """By block, for each layer with parameters: bytes of its outputs and of its inputs, per example."""
    with_parameters = {value.layer for value in timeline.values if value.kind == PARAMETERS}
    sizes: dict[str, list[tuple[float, float]]] = {}
    for layer in found.flow:
        if layer.path in with_parameters and layer.reads:
            given = sum(prod(found.flow[i].shape) for i in layer.reads)
            sizes.setdefault(block_of(layer.path), []).append((4 * prod(layer.shape) / batch, 4 * given / batch))
    return sizes
