"""`weft.plan.scaling_plan`: how training scales with each split, from one rank to thousands, and which split is best.

work = weft.plan.measured_work(step, batch=32)
print(weft.plan.scaling_plan(work, weft.plan.cluster("dgx-h100"), 32, [1, 8, 64, 512]))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..errors import UserError
from ..records import dataclass
from ..report.text_format import counted
from .plan_text import plan_text
from .splits import ParallelSplit, splits
from .step_time import BUCKET, Cluster, StepPrediction, predict
from .step_work import StepWork

SIMPLER = 0.99  # a simpler split wins if it reaches this fraction of the fastest one's speed


@dataclass(frozen=True)
class ScalingPlan:
    """A scaling plan; see the top of this file. `print` it, draw it with `scaling_svg`, or read `rows`."""

    subject: str
    cluster: str
    title: str  # of the cluster
    overlap: bool
    batch: float  # per rank; of all ranks together if `fixed_total`
    fixed_total: bool
    parameters: float  # bytes
    rows: tuple[StepPrediction, ...]  # the best of each family for each number of ranks
    limits: dict[int, float | None]  # memory of a rank in bytes, by number of ranks

    @property
    def ranks(self) -> list[int]:
        return sorted(self.limits)

    def fits(self, row: StepPrediction) -> bool:
        """Whether a rank has enough memory."""
        limit = self.limits[row.split.ranks]
        return limit is None or row.memory.total <= limit

    def of(self, ranks: int) -> list[StepPrediction]:
        """The predictions for a number of ranks, the best first: those that fit into memory, then the fastest, then the simplest."""
        found = [row for row in self.rows if row.split.ranks == ranks]
        fastest = min((row.seconds for row in found if self.fits(row)), default=0.0)

        def rank(row: StepPrediction) -> tuple[bool, bool, int, float]:
            near = fastest >= SIMPLER * row.seconds
            return not self.fits(row), not near, complexity(row.split) if near else 0, row.seconds

        return sorted(found, key=rank)

    def best(self, ranks: int) -> StepPrediction:
        return self.of(ranks)[0]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        names = ("subject", "cluster", "title", "overlap", "batch", "fixed_total", "parameters")
        best = {str(n): str(self.best(n).split) for n in self.ranks}
        return {name: getattr(self, name) for name in names} | {"best": best, "rows": [self._row(row) for row in self.rows]}  # fmt: skip

    def _row(self, row: StepPrediction) -> dict[str, Any]:
        derived = {"seconds": row.seconds, "efficiency": row.efficiency, "per_second": row.per_second, "fits": self.fits(row)}  # fmt: skip
        memory = asdict(row.memory) | {"total": row.memory.total}
        return {"name": str(row.split), "ranks": row.split.ranks} | asdict(row) | derived | {"memory": memory}

    def __str__(self) -> str:
        return plan_text(self)


def complexity(split: ParallelSplit) -> int:
    """The number of techniques that a split combines."""
    return split.zero + 2 * (split.model > 1) + 3 * (split.pipeline > 1)


def family(split: ParallelSplit) -> str:
    """The techniques of a split, without numbers.

    >>> family(ParallelSplit(data=4, pipeline=2, zero=1)), family(ParallelSplit())
    ('data zero:1 pipeline', 'data')
    """
    parts = ["data"] if split.data > 1 or split.ranks == 1 else []
    parts += [f"zero:{split.zero}"] if split.zero else []
    return " ".join(parts + [name for name in ("model", "pipeline") if getattr(split, name) > 1])


def scaling_plan(
    work: StepWork, cluster: Cluster, batch: float, ranks: Sequence[int], *, total: float | None = None,
    format: str | None = None, bucket: float = BUCKET, subject: str = "", possible: Callable[[ParallelSplit], bool] = lambda split: True,
) -> ScalingPlan:  # fmt: skip
    """Predict all splits for each number of ranks. Each rank has `batch` examples; with `total`, all ranks together have `total`.

    `format` projects to another number format (float16) on a described cluster. Splits that are not `possible` are left out.
    """
    wanted = sorted(set(ranks))
    _check(cluster, wanted, batch if total is None else total / wanted[-1])
    alone = cluster.work(work, 1, format)
    rows: list[StepPrediction] = []
    for n in wanted:
        each = batch if total is None else total / n
        among = cluster.work(work, n, format)
        stages = sum(1 for layer in among.layers if layer.parameters)
        found = [
            predict(alone, among, s, cluster, each, bucket)
            for s in splits(n, cluster.ranks_per_node, stages, each)
            if possible(s)
        ]
        if not found:
            raise UserError(
                "plan", f"no split of this training uses exactly {n} ranks. Choose another number: ranks=..."
            )
        rows += _best_of_families(found, cluster.rank_memory(n))
    return ScalingPlan(
        subject, cluster.name, cluster.title, cluster.overlap, batch if total is None else total, total is not None,
        alone.parameters, tuple(rows), {n: cluster.rank_memory(n) for n in wanted},
    )  # fmt: skip


def _check(cluster: Cluster, ranks: Sequence[int], batch: float) -> None:
    most = cluster.most_ranks()
    if most is not None and ranks[-1] > most:
        raise UserError("plan", f"this machine has {most} cores, which is the largest number of ranks, got ranks={ranks[-1]}. Choose a cluster: machines=dgx-h100.")  # fmt: skip
    if ranks[0] < 1:
        raise UserError("plan", f"at least one rank is required, got ranks={ranks[0]}. For example: ranks=1,8.")
    if batch < 1:
        raise UserError("plan", f"at least one example per rank is required, got {batch:g} for {counted(ranks[-1], 'rank')}. Increase batch= or total=, or use fewer ranks.")  # fmt: skip


def _best_of_families(found: Sequence[StepPrediction], limit: float | None) -> list[StepPrediction]:
    """Of each family the fastest that fits, or the one that needs least memory."""
    families: dict[str, list[StepPrediction]] = {}
    for row in found:
        families.setdefault(family(row.split), []).append(row)

    def best(rows: list[StepPrediction]) -> StepPrediction:
        fitting = [row for row in rows if limit is None or row.memory.total <= limit]
        return min(fitting, key=lambda r: r.seconds) if fitting else min(rows, key=lambda r: r.memory.total)

    return [best(rows) for rows in families.values()]
