"""Published scaling efficiencies compared with the model's predictions, with an explanation of the difference."""

from __future__ import annotations

from math import log, sqrt

from .. import nn
from ..nn.module import without_values
from ..records import dataclass
from ..zoo import find
from .clusters import PublishedScaling, cluster, published_scaling
from .splits import ParallelSplit
from .step_time import StepPrediction, predict
from .summary_work import summary_work

SIDES = {"inception_v3": 299}
FUSION = 64e6  # bytes that Horovod reduces at a time (HOROVOD_FUSION_THRESHOLD)


@dataclass(frozen=True)
class ScalingCheck:
    """A published efficiency and the predicted one."""

    published: PublishedScaling
    predicted: StepPrediction

    @property
    def difference(self) -> float:
        """Predicted minus published efficiency."""
        return self.predicted.efficiency - self.published.efficiency

    @property
    def spread(self) -> float:
        """The relative standard deviation (sigma) of the ranks' step times that would explain a lower published efficiency: all ranks wait for the
        slowest of N, which is late by sqrt(2 ln N) sigma."""
        late = self.predicted.efficiency / self.published.efficiency - 1
        return max(0.0, late) * self.predicted.seconds / self.predicted.alone / sqrt(2 * log(self.published.ranks))

    @property
    def bandwidth_share(self) -> float | None:
        """The fraction of the network's line rate that would explain the published efficiency if training is communication-bound."""
        late = self.predicted.alone / self.published.efficiency - self.predicted.seconds
        if not self.predicted.exposed or late <= 0:
            return None
        return self.predicted.communication / (self.predicted.communication + late)

    @property
    def reason(self) -> str:
        """The effect that the model leaves out."""
        if self.difference <= 0:
            return "the model is pessimistic here: it lets the all-reduce start only with a full bucket"
        if self.bandwidth_share is not None and self.bandwidth_share > 0.5:
            return (
                f"bound by the network: an all-reduce at {self.bandwidth_share:.0%} of the line rate would explain the difference "
                "(headers, congestion, and buckets that wait for the slowest rank)"
            )
        return (
            f"the all-reduce is hidden behind the backward pass; the difference is waiting for the slowest of {self.published.ranks} ranks, "
            f"which the model leaves out: step times that vary by {self.spread:.1%} would explain it"
        )


def published_checks() -> list[ScalingCheck]:
    """The published rows, each predicted from the published rate of one GPU."""
    return [ScalingCheck(row, _predicted(row)) for row in published_scaling()]


def _predicted(row: PublishedScaling) -> StepPrediction:
    where = cluster(row.cluster)
    side = SIDES.get(row.network, 224)
    with without_values():
        summary = nn.summary(find(row.network)(1000), (1, 3, side, side))
    work = summary_work(summary, row.images_per_second.value, where.rank.title)
    return predict(work, work, ParallelSplit(data=row.ranks), where, row.batch, FUSION)
