"""The time of a step that is split between ranks: compute, exposed communication, and pipeline bubbles.

Data axis: gradients are reduced in buckets, in the order in which the backward pass computes them. On a cluster that can overlap computation
and communication, a bucket is sent as soon as it is full and the previous one is done; otherwise all are sent together after the
backward pass.

Model axis: each layer with parameters is split by its outputs. They are all-gathered in the forward pass, and the gradients of its inputs
are all-reduced in the backward pass. Pairs of linear layers could be split by outputs and then by inputs, with half the communication.

Pipeline: m micro-batches pass p stages, which takes the sum over the stages + (m - 1) times the slowest stage. With equal stages, the
bubble is (p - 1) / (m + p - 1) of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from ..records import dataclass
from .collectives import CollectiveCost, RankGroup
from .rank_memory import RankMemory, rank_memory
from .splits import ParallelSplit
from .step_work import LayerWork, StepWork

BUCKET = 25e6  # bytes of gradients that are reduced together
MOST_BUCKETS = 1000  # more would make a plan slow, and no program has them
PRECISION = 40  # bisection steps for the time of the slowest stage
COPIES = 4  # of gradients: read and written when packed into a bucket, and when unpacked


class Cluster(Protocol):
    """The interface of a cluster, described or measured."""

    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def ranks_per_node(self) -> int: ...
    @property
    def overlap(self) -> bool: ...
    def most_ranks(self) -> int | None: ...
    def rank_memory(self, ranks: int) -> float | None: ...
    def work(self, measured: StepWork, ranks: int, format: str | None = None) -> StepWork: ...
    def copy_seconds(self, nbytes: float, ranks: int) -> float: ...
    def all_reduce(self, group: RankGroup, nbytes: float) -> CollectiveCost: ...
    def half_all_reduce(self, group: RankGroup, nbytes: float) -> float: ...
    def send(self, nbytes: float, crosses_nodes: bool, sharing: int = 1) -> float: ...


@dataclass(frozen=True)
class StepPrediction:
    """A predicted step. All times are seconds; `seconds` is the sum of `compute`, `waiting`, `exposed`, `copies` and `update`."""

    split: ParallelSplit
    batch: float  # of all ranks together
    alone: float  # a step of a single rank with its examples
    compute: float
    waiting: float  # the bubble of a pipeline
    communication: float  # total
    exposed: float  # communication not overlapped with computation
    copies: float
    update: float
    algorithm: str  # of the all-reduce of gradients
    memory: RankMemory

    @property
    def seconds(self) -> float:
        return self.compute + self.waiting + self.exposed + self.copies + self.update

    @property
    def efficiency(self) -> float:
        """The throughput relative to as many independent ranks."""
        return self.alone / self.seconds

    @property
    def per_second(self) -> float:
        """The throughput of all ranks, in examples per second."""
        return self.batch / self.seconds


def predict(
    alone: StepWork, work: StepWork, split: ParallelSplit, cluster: Cluster, batch: float, bucket: float = BUCKET
) -> StepPrediction:
    """Predict a step with `batch` examples per rank. `work` is that of a rank among the others, `alone` that of a single rank."""
    micro = batch * split.model * split.pipeline / split.micro_batches
    stages = cut(work.layers, split.pipeline, micro)
    data, model = split.groups(cluster.ranks_per_node)
    exchanged = [_exchange(stage, micro, model, cluster) for stage in stages]
    times = [sum(layer.seconds.at(micro / split.model) for layer in stage) for stage in stages]
    total, busy, sends = _pipelined(stages, times, exchanged, split, cluster, micro)
    inner = split.model * split.pipeline
    heaviest = max(sum(layer.parameters for layer in stage) for stage in stages) / split.model
    reduced = _Reduction(cluster, data, split, min(bucket, heaviest) if cluster.overlap else heaviest)
    hidden_by = [(layer.backward.at(micro / split.model), layer.parameters / split.model) for layer in reversed(work.layers)]  # fmt: skip
    spent, late = reduced.overlapped(hidden_by) if split.pipeline == 1 else reduced.after(heaviest)
    slowest = max(range(len(stages)), key=lambda i: times[i] + exchanged[i])
    parts = exchanged[slowest] * split.micro_batches
    copies = cluster.copy_seconds(COPIES * heaviest, split.ranks) if split.data > 1 else 0.0
    update = work.update / inner / (split.data if split.zero else 1)
    return StepPrediction(
        split, batch * split.ranks, alone.seconds(batch), busy - parts, total - busy - sends, parts + sends + spent,
        parts + sends + late, copies, update, reduced.algorithm(heaviest),
        rank_memory(work, split, stages, batch, reduced.bucket, cluster.overlap),
    )  # fmt: skip


def _pipelined(
    stages: Sequence[Sequence[LayerWork]], times: Sequence[float], exchanged: Sequence[float], split: ParallelSplit,
    cluster: Cluster, micro: float,
) -> tuple[float, float, float]:  # fmt: skip
    """The seconds of all micro-batches, of the slowest stage's work, and of sending activations."""
    whole = [time + more for time, more in zip(times, exchanged, strict=True)]
    if split.pipeline == 1:
        return whole[0], whole[0], 0.0
    crosses = split.crosses_nodes(cluster.ranks_per_node)
    sharing = min(cluster.ranks_per_node, split.model)
    hops = [2 * cluster.send(micro * stage[-1].output / split.model, crosses, sharing) for stage in stages[:-1]]
    sends = sum(hops) + (split.micro_batches - 1) * max(hops)
    slowest = max(whole)
    return sum(whole) + (split.micro_batches - 1) * slowest + sends, split.micro_batches * slowest, sends


def _exchange(layers: Sequence[LayerWork], micro: float, group: RankGroup, cluster: Cluster) -> float:
    """The communication time of the model axis for one micro-batch."""
    if group.size == 1:
        return 0.0
    sizes = [pair for layer in layers for pair in layer.split_sizes]
    gathered = sum(cluster.half_all_reduce(group, micro * output) for output, _ in sizes)
    return gathered + sum(cluster.all_reduce(group, micro * given).seconds for _, given in sizes)


@dataclass(frozen=True)
class _Reduction:
    """The reduction of gradients along the data axis."""

    cluster: Cluster
    group: RankGroup
    split: ParallelSplit
    bucket: float

    def algorithm(self, nbytes: float) -> str:
        if self.group.size == 1:
            return ""
        return "reduce-scatter" if self.split.zero else self.cluster.all_reduce(self.group, nbytes).algorithm

    def after(self, nbytes: float) -> tuple[float, float]:
        """Total and exposed time of a reduction after the backward pass: nothing is overlapped."""
        spent = self._one(nbytes) + self._gather(nbytes)
        return spent, spent

    def overlapped(self, made: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Total and exposed time, for layers with seconds and bytes in the order of the backward pass."""
        total = sum(nbytes for _, nbytes in made)
        if self.group.size == 1 or not total:
            return 0.0, 0.0
        if not self.cluster.overlap:
            return self.after(total)
        sent = buckets(made, self.bucket)
        free = spent = 0.0
        for ready, nbytes in sent:
            seconds = self._one(nbytes)
            free = max(free, ready) + seconds
            spent += seconds
        gather = self._gather(total)
        return spent + gather, max(0.0, free - sum(seconds for seconds, _ in made)) + gather

    def _one(self, nbytes: float) -> float:
        if self.split.zero:
            return self.cluster.half_all_reduce(self.group, nbytes)
        return self.cluster.all_reduce(self.group, nbytes).seconds

    def _gather(self, nbytes: float) -> float:
        """The all-gather of new parameters, of which each rank of the data axis has updated a part."""
        return self.cluster.half_all_reduce(self.group, nbytes) if self.split.zero else 0.0


def buckets(made: Sequence[tuple[float, float]], most: float) -> list[tuple[float, float]]:
    """When each bucket is full, and its bytes. A layer that is larger than a bucket is split.

    >>> buckets([(1.0, 10.0), (1.0, 50.0), (2.0, 5.0)], 30.0)
    [(2.0, 30.0), (2.0, 30.0), (4.0, 5.0)]
    """
    most = max(most, sum(nbytes for _, nbytes in made) / MOST_BUCKETS)
    found: list[tuple[float, float]] = []
    now = waiting = 0.0
    for seconds, nbytes in made:
        now, waiting = now + seconds, waiting + nbytes
        while waiting >= most:
            found.append((now, most))
            waiting -= most
    return [*found, (now, waiting)] if waiting else found


def cut(layers: Sequence[LayerWork], stages: int, batch: float) -> list[tuple[LayerWork, ...]]:
    """Group consecutive layers into stages that minimize the time of the slowest stage.

    >>> from weft.plan.step_work import BatchLine
    >>> layers = [LayerWork(name, BatchLine(seconds)) for name, seconds in zip("abcd", (3.0, 1.0, 1.0, 3.0))]
    >>> [[layer.name for layer in stage] for stage in cut(layers, 3, 1)]
    [['a'], ['b', 'c'], ['d']]
    """
    times = [layer.seconds.at(batch) for layer in layers]
    low, high = max(times), sum(times)
    for _ in range(PRECISION):
        middle = (low + high) / 2
        low, high = (low, middle) if len(_filled(times, middle)) <= stages else (middle, high)
    ends = _filled(times, high)
    more = [
        i for i in range(1, len(layers)) if i not in ends
    ]  # splitting a stage in two does not make the slowest stage slower
    ends = sorted([*ends, *more[len(more) - (stages - len(ends)) :]]) if len(ends) < stages else ends
    return [tuple(layers[begin:end]) for begin, end in pairwise([0, *ends])]


def _filled(times: Sequence[float], most: float) -> list[int]:
    """The ends of stages, each greedily filled with layers up to a time limit."""
    ends, spent = [], 0.0
    for i, seconds in enumerate(times):
        if spent + seconds > most and spent:
            ends.append(i)
            spent = 0.0
        spent += seconds
    return [*ends, len(times)]
