"""How training can be split between ranks: data, model (the width of layers) and pipeline parallelism (stages of layers).

`data:8 model:4 pipeline:2` are 64 ranks: 4 neighbours share every layer, 2 such groups are stages of a pipeline, and 8 such pipelines work
on different examples. A rank has the same number of examples in every split: 64 ranks with 32 examples each process 2,048 per step,
however they are split.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..records import dataclass
from .collectives import RankGroup

MICRO_BATCHES = 4  # for each stage of a pipeline


@dataclass(frozen=True)
class ParallelSplit:
    """Ranks along each axis, and what is sharded along the data axis: optimizer state (zero=1), gradients too (zero=2).

    >>> split = ParallelSplit(data=8, model=2, pipeline=4, zero=1)
    >>> split.ranks, str(split)
    (64, 'data:8 zero:1 model:2 pipeline:4')
    """

    data: int = 1
    model: int = 1
    pipeline: int = 1
    zero: int = 0
    micro_batches: int = 1

    @property
    def ranks(self) -> int:
        return self.data * self.model * self.pipeline

    def groups(self, per_node: int) -> tuple[RankGroup, RankGroup]:
        """The groups of the data axis and of the model axis. Neighbours split layers, since that needs the fastest links."""
        inner = self.model * self.pipeline
        data = RankGroup(self.data, min(self.data, max(1, per_node // inner)), min(per_node, inner))
        model = RankGroup(self.model, min(self.model, per_node), max(1, min(per_node, self.ranks) // self.model))
        return data, model

    def crosses_nodes(self, per_node: int) -> bool:
        """Whether neighbouring stages of the pipeline are on different nodes."""
        return self.model * self.pipeline > per_node

    def __str__(self) -> str:
        parts = [f"data:{self.data}"] if self.data > 1 or self.ranks == 1 else []
        parts += [f"zero:{self.zero}"] if self.zero else []
        parts += [f"{name}:{n}" for name, n in (("model", self.model), ("pipeline", self.pipeline)) if n > 1]
        return " ".join(parts)


def splits(ranks: int, per_node: int, stages: int, batch: float) -> Iterator[ParallelSplit]:
    """The candidate splits of `ranks` ranks: layers are split only inside a node, pipelines have at most one stage per layer."""
    for model in _divisors(ranks, per_node):
        for pipeline in _divisors(ranks // model, stages):
            micro = _micro_batches(pipeline, batch * model * pipeline)
            data = ranks // (model * pipeline)
            for zero in (0, 1, 2) if data > 1 else (0,):
                yield ParallelSplit(data, model, pipeline, zero, micro)


def _divisors(number: int, most: int) -> list[int]:
    """The powers of two up to `most` that divide a number, and the number itself if it is not larger than `most`."""
    found = [2**k for k in range(12) if 2**k <= most and number % 2**k == 0]
    return found if number > most or number in found else [*found, number]


def _micro_batches(pipeline: int, batch: float) -> int:
    """The number of micro-batches: enough for a small bubble, at least one example each."""
    return 1 if pipeline == 1 else max(1, min(MICRO_BATCHES * pipeline, int(batch)))
