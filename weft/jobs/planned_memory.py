"""The memory that a training needs, known before it starts: its step is planned for two batch sizes, and nothing is run.

The memory of a step grows about linearly with its batch: the plans of the given batch and of a larger one tell about others, and which is the
largest that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..data.loader import Loader
from ..records import dataclass
from ..runtime.free_memory import SHARE, free_bytes
from ..train.forecast import forecast
from ..train.making import make
from ..train.memory import need, total
from .device import on
from .job import Job, job_of
from .weights import settings_for_weights

LARGER = 4  # times the batch: the second plan
MOST = 1 << 20  # the largest batch that is proposed


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes of a training on its device: what the network and the optimizer keep, and what a step needs besides."""

    weights: int
    optimizer: int
    fixed: int  # of a step, whatever its batch
    per_example: int  # of a step
    free: int | None
    batch: int  # of the settings, or the default
    examples: int

    def step(self, batch: int) -> int:
        """What a step with this batch needs besides weights and optimizer: activations, gradients and workspace."""
        return self.fixed + batch * self.per_example

    def total(self, batch: int) -> int:
        """All of it."""
        return self.weights + self.optimizer + self.step(batch)

    def disk(self, kept: int) -> int:
        """Bytes of the checkpoints: the best and the last weights, those of `kept` epochs, and two states to resume from."""
        return (2 + kept) * self.weights + 2 * (self.weights + self.optimizer)

    @property
    def available(self) -> int | None:
        """What training may use of the free memory."""
        return None if self.free is None else int(SHARE * self.free)

    @property
    def largest_batch(self) -> int:
        """The largest batch that fits; 0 if not even one example does."""
        most = min(MOST, self.examples)
        if self.available is None:
            return most
        left = self.available - self.total(0)
        return max(0, min(most, left // max(1, self.per_example)))


def planned_memory(settings: Mapping[str, Any]) -> PlannedMemory:
    """Plan the training of validated settings. It takes about as long as compiling does without writing code."""
    with on(settings["device"]) as device:
        free = free_bytes()  # before the parameters of the plan take some of it
        return planned_job(job_of("train", settings_for_weights({**settings, "device": device.name})), free)


def planned_job(job: Job, free: int | None) -> PlannedMemory:
    """Plan a training step of a job."""
    job.check_memory()
    model, plan = job.model(), job.plan()
    kept = forecast(lambda: model, lambda found: found, plan.optimizer_share())
    _, steps = make(model, Loader(job.train, 1), plan)
    steps.set_mode(training=True)
    batch = job.usual_batch() if job.settings["batch"] == "auto" else job.settings["batch"]
    first, second = (total(need(steps.train, job.train, size)) for size in (batch, LARGER * batch))
    per_example = max(0, (second - first) // ((LARGER - 1) * batch))
    fixed = first - batch * per_example - kept.network - kept.optimizer
    return PlannedMemory(kept.network, kept.optimizer, fixed, per_example, free, batch, len(job.train))
