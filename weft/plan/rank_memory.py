"""The memory of one rank: parameters, gradients, optimizer state, and the planned arena of its step."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import dataclass
from .splits import ParallelSplit
from .step_work import LayerWork, StepWork


@dataclass(frozen=True)
class RankMemory:
    """Memory in bytes. `activations`, `gradients` and `buffers` are those at the peak: gradients grow while activations are freed.

    >>> RankMemory(parameters=4.0, optimizer_state=4.0, gradients=4.0, activations=8.0, buffers=0.0, inputs=1.0).total
    21.0
    """

    parameters: float
    optimizer_state: float
    gradients: float
    activations: float  # and everything else in the arena
    buffers: float  # of gradients being reduced
    inputs: float

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


def rank_memory(
    work: StepWork,
    split: ParallelSplit,
    stages: Sequence[Sequence[LayerWork]],
    batch: float,
    bucket: float,
    overlap: bool,
) -> RankMemory:
    """The memory of the rank that needs most. `batch` is per rank, `bucket` is the number of bytes reduced at a time.

    Optimizer state is sharded along the data axis with zero=1, gradients too with zero=2. A stage stores the activations of as many
    micro-batches as there are stages from it to the last one (1F1B).
    """
    micro = batch * split.model * split.pipeline / split.micro_batches
    found, before = [], 0.0
    for number, layers in enumerate(stages):
        found.append(_stage(work, split, number, layers, micro, before, bucket if split.data > 1 else 0.0, overlap))
        before += sum(layer.activations.at(micro) for layer in layers)
    return max(found, key=lambda memory: memory.total)


def _stage(
    work: StepWork, split: ParallelSplit, number: int, layers: Sequence[LayerWork], micro: float, before: float,
    bucket: float, overlap: bool,
) -> RankMemory:  # fmt: skip
    parameters = sum(layer.parameters for layer in layers) / split.model
    share = parameters / work.parameters if work.parameters else 0.0
    kept = sum(layer.activations.at(micro) for layer in layers)
    waiting = (min(split.micro_batches, split.pipeline - number) - 1) * kept
    live = [max(0.0, waiting + layer.live.at(micro) - before) / split.model for layer in layers]
    most = max(0.0, work.forward_live.at(micro) - before) / split.model if number + 1 == split.pipeline else 0.0
    gradients = [layer.parameters / split.model / (split.data if split.zero == 2 else 1) for layer in layers]
    activations, there, sent = _peak(live, most, gradients, split, bucket, overlap)
    return RankMemory(
        parameters, share * work.optimizer_state / (split.data if split.zero else 1), there, activations, sent,
        work.inputs.at(micro) if number in (0, split.pipeline - 1) else 0.0,
    )  # fmt: skip


def _peak(
    live: Sequence[float],
    forward: float,
    gradients: Sequence[float],
    split: ParallelSplit,
    bucket: float,
    overlap: bool,
) -> tuple[float, float, float]:
    """Arena, gradients and buffers at the peak of their sum: in the forward pass, in the backward pass at some layer, or at its end.

    A rank without data parallelism applies each gradient as soon as it is computed; the arena contains it.
    """
    total = sum(gradients)
    if split.micro_batches > 1:  # gradient accumulation over micro-batches
        return max(forward, *live), total, bucket
    if split.data == 1:
        return max(forward, *live), 0.0, 0.0
    moments, above = [(forward, 0.0, 0.0)], 0.0
    for arena, gradient in zip(reversed(live), reversed(gradients), strict=True):
        moments.append((arena, above, bucket if overlap else 0.0))
        above += gradient
    return max([*moments, (0.0, total, bucket)], key=sum)
