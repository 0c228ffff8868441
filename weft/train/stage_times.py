"""Where the network of a pipeline is cut: stages are balanced by the time that layers take, forward and backward.

Rank 0 measures every layer once, as a stage of its own, and tells the others where to cut. Layers that compute the same are
measured once, those with the most work first, and not for longer than a few seconds: times of the rest are in proportion to their
multiply-adds. Times differ between runs, so the cut is kept with the checkpoint: a run that goes on with as many stages keeps it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..dtypes import uint64
from ..graph.node import CONST, VARIABLE, Node, Type
from ..nn.module import Module
from ..parallel.forms import COUNTED
from ..parallel.pipeline_cuts import CutPoint, NetworkTrace, cut, cut_names, described, trace_network
from ..parallel.pipeline_stage import BatchTask, PipelineStage
from ..records import dataclass
from ..report.text_format import counted
from ..runtime import device
from ..tensor import Tensor
from .pipeline_options import PipelineOptions
from .ranks import Ranks
from .task import prediction_of

SECONDS = 4.0  # after these, no other layer is measured
RUNS = 3  # of each layer, after one that compiles; the fastest counts
Part = tuple[CutPoint | None, CutPoint | None]


@dataclass(frozen=True)
class StageCuts:
    """Where the network of a pipeline is cut, and how that was found, for a log."""

    text: str
    after: Sequence[str] | None = None  # the last layer of each stage but the last; None: counted multiply-adds decide
    seconds: Sequence[float] | None = None  # of the stages, if they were measured


def stage_cuts(
    model: Module, input: Type, ranks: Ranks, options: PipelineOptions, saved: Sequence[str] | None, precision: str | None
) -> StageCuts:  # fmt: skip
    """The cuts as they were given or saved, or else as times decide that rank 0 measures: a collective call."""
    after = options.after(saved, ranks.sizes.pipeline)
    if after is not None:
        return StageCuts("cut as given" if after is options.cuts else "cut as before", after)
    if options.cuts == COUNTED:
        return StageCuts("balanced by counted multiply-adds")
    if not device().has_kernels or device().is_modelled:
        return StageCuts(f"balanced by counted multiply-adds, as {device().name} has no times to measure")
    found = _measured(model, input, ranks.sizes.pipeline, precision) if ranks.leads else StageCuts("")
    return StageCuts(*json.loads(ranks.told_by_leader(json.dumps([found.text, found.after, found.seconds]))))


def _measured(model: Module, input: Type, stages: int, precision: str | None) -> StageCuts:
    """Measure the layers of the whole network on a micro-batch. It changes nothing, running statistics and random streams included."""
    begin = time.perf_counter()
    modes = {part: part.training for part in model.modules()}
    try:
        network = trace_network(model.train(), input)
        text = _set_costs(network, model, precision)
    finally:
        for part, mode in modes.items():
            part.training = mode
    cuts = cut(network, stages)
    text += f", measured in {time.perf_counter() - begin:.1f} s"
    return StageCuts(text, cut_names(network, cuts), described(network, cuts)[1])


def _set_costs(network: NetworkTrace, model: Module, precision: str | None) -> str:
    """Replace the costs of the parts of a network by seconds; says which were measured."""
    end = time.perf_counter() + SECONDS
    parts: list[Part] = list(pairwise([None, *network.points, None]))
    groups = _groups([any(_is_trained(network, n) for n in network.between(*part)) for part in parts])
    alike: dict[Hashable, list[range]] = {}
    for group in groups:
        alike.setdefault(_signature(network.between(parts[group[0]][0], parts[group[-1]][1])), []).append(group)

    def work(group: range) -> float:
        return sum(network.costs[i] for i in group)

    rates: dict[range, float] = {}  # seconds for a unit of counted work
    waiting = sorted(alike.values(), key=lambda same: len(same) * work(same[0]))  # the last is measured first
    while waiting and time.perf_counter() < end:
        same = waiting.pop()
        seconds = _seconds(network, model, parts[same[0][0]][0], parts[same[0][-1]][1], precision)
        rates |= {group: seconds / work(group) if work(group) else 0.0 for group in same}
    some = ""
    if waiting:
        known = sum(map(work, rates))
        usual = sum(rate * work(group) for group, rate in rates.items()) / known if known else 1.0
        rates |= {group: usual for same in waiting for group in same}
        some = f" ({len(alike) - len(waiting)} of {counted(len(alike), 'different layer')}, the rest in proportion to multiply-adds)"
    for group in groups:
        for i in group:
            network.costs[i] *= rates[group]
    return f"balanced by times of layers{some}"


def _groups(trained: Sequence[bool]) -> list[range]:
    """Parts that are measured together: a layer with parameters, and what follows without, which is often fused with it.

    >>> _groups([False, True, False, True, True])
    [range(0, 3), range(3, 4), range(4, 5)]
    """
    begins = [i for i, found in enumerate(trained) if found]
    return [range(a, b) for a, b in pairwise([0, *begins[1:], len(trained)])]


def _is_trained(network: NetworkTrace, node: Node) -> bool:
    return node in network.tensors and network.tensors[node].requires_grad


def _signature(nodes: Sequence[Node]) -> Hashable:
    """What a part computes, whatever parameters it has and wherever its random numbers begin."""
    numbers = {node: i for i, node in enumerate(nodes)}

    def own(node: Node) -> Hashable:
        anywhere = node.op is VARIABLE or (node.op is CONST and node.dtype is uint64)
        params = () if anywhere else node.params
        return node.op.name, node.type, params, tuple(numbers.get(i, -1) for i in node.inputs)

    return tuple(map(own, nodes))


def _seconds(
    network: NetworkTrace, model: Module, begin: CutPoint | None, end: CutPoint | None, precision: str | None
) -> float:
    """The time of a forward and a backward pass of a part, as a stage that recomputes its activations runs them in one program."""
    parameters = [network.tensors[n] for n in network.between(begin, end) if _is_trained(network, n)]
    state = [
        t for t in model.named_tensors().values() if not t.requires_grad
    ]  # updated, but not read: all of it is kept
    task = BatchTask(network.input, None, _mean)
    stage = PipelineStage(model, network, begin, end, task, parameters, state, recompute=True, precision=precision)
    given = network.input if begin is None else begin.type
    g = np.ones((), np.float32) if end is None else np.ones(end.type.shape, end.type.dtype.numpy)
    arguments: tuple[Any, ...] = (
        np.zeros(given.shape, given.dtype.numpy),
        np.zeros((), np.float32),
        np.zeros((), np.uint64),
        g,
    )
    taken = []
    for _ in range(1 + RUNS):
        start = time.perf_counter()
        found = stage.backward(*arguments)
        for tensor in found.parameters[:1]:
            tensor.numpy()  # waits for the device
        taken.append(time.perf_counter() - start)
    return min(taken[1:])


def _mean(result: Any, target: Tensor) -> Tensor:
    """In place of the loss."""
    prediction: Tensor = prediction_of(result)
    return prediction.mean()
