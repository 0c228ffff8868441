"""The memory of one rank: parameters, gradients, optimizer state, and what the planned arena of its step holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from .splits import ParallelSplit
from .step_work import LayerWork, StepWork


@dataclass(frozen=True)
class RankMemory:
    """Bytes. `activations` and `gradients` are those at the peak: gradients come while activations go."""

    parameters: float
    optimizer_state: float
    gradients: float
    activations: float
    buffers: float  # of gradients on their way, and temporaries of kernels
    inputs: float

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


def rank_memory(work: StepWork, split: ParallelSplit, stages: Sequence[Sequence[LayerWork]], batch: float, bucket: float) -> RankMemory:  # fmt: skip
    """The memory of the rank that needs most. `batch` is that of one rank, `bucket` the bytes that are reduced at a time.

    Optimizer state is shared by the data axis with zero=1, gradients too with zero=2. A stage keeps the activations of as many
    micro-batches as there are stages from it to the last one (1F1B).
    """
    micro = batch * split.model * split.pipeline / split.micro_batches
    found = [_stage(work, split, number, layers, micro, bucket) for number, layers in enumerate(stages)]
    return max(found, key=lambda memory: memory.total)


def _stage(work: StepWork, split: ParallelSplit, number: int, layers: Sequence[LayerWork], micro: float, bucket: float) -> RankMemory:  # fmt: skip
    parameters = sum(layer.parameters for layer in layers) / split.model
    share = parameters / work.parameters if work.parameters else 0.0
    in_flight = min(split.micro_batches, split.pipeline - number)
    kept = [in_flight * layer.activations.at(micro) / split.model for layer in layers]
    shards = split.data if split.zero == 2 else 1
    gradients = [layer.parameters / split.model / shards for layer in layers]
    activations, at_peak = _peak(kept, gradients) if split.micro_batches == 1 else (sum(kept), sum(gradients))
    sent = 2 * min(bucket, parameters) if split.data > 1 else 0.0
    temporaries = work.temporaries.at(micro) / split.model
    return RankMemory(
        parameters,
        share * work.optimizer_state / (split.data if split.zero else 1),
        at_peak,
        activations,
        max(sent, temporaries) if split.micro_batches == 1 else sent + temporaries,
        work.inputs.at(micro) if number in (0, split.pipeline - 1) else 0.0,
    )


def _peak(kept: Sequence[float], gradients: Sequence[float]) -> tuple[float, float]:
    """While the backward pass is at a layer there are the activations up to it, and the gradients from it on.

    >>> _peak([10.0, 20.0], [100.0, 5.0])
    (10.0, 105.0)
    """
    if not kept:
        return 0.0, 0.0
    below = list(accumulate(kept))
    above = list(accumulate(reversed(gradients)))[::-1]
    return max(zip(below, above, strict=True), key=sum)
