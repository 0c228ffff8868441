"""Is data loading the bottleneck? The times of the stages from disk to the updated network, the limiting stage, and how many workers would help.

Stages of a loader's threads (read, decode, collate) overlap with the step; those of the step (copy, augment, compute) run in sequence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from ..records import dataclass
from .profile_text import duration, table

LOADING, STEP = "loader", "step"
NEGLIGIBLE = 0.05  # fraction of the time
SLOWER = 1.15  # times the slower of the two: above, loader and step compete for cores
ADVICE = {
    "read": "Faster storage, more memory for the page cache, or smaller stored images.",
    "decode": "Store decoded images (weft dataset create ... store=arrays), or smaller ones.",
    "collate": "Let the dataset return arrays of the final dtype and layout.",
    "copy": "Store inputs as bytes (uint8) and convert them in the step, so that fewer bytes are copied.",
    "augment": "A lighter augmentation, or none: it is a part of the compiled step.",
    "compute": "Only a faster step helps: weft profile shows its layers.",
}


@dataclass(frozen=True)
class StageTime:
    """Seconds of a stage per batch; `part` is the loader or the step."""

    name: str
    part: str
    seconds: float


@dataclass(frozen=True)
class DataBottleneck:
    """The measurements, in seconds per batch. `print` it, or read `limit` and `workers_needed`."""

    batch: int
    workers: int
    cores: int
    stages: tuple[StageTime, ...]
    loader: Mapping[int, float]  # the loader alone, by the number of workers
    step: float  # alone, on one batch in memory
    both: float  # the step on the batches of the loader, with `workers`
    where: str = ""
    notes: tuple[str, ...] = ()

    def loader_seconds(self, workers: int) -> float:
        """The time of the loader alone with `workers` workers: measured, or interpolated by throughput."""
        if workers in self.loader:
            return self.loader[workers]
        known = sorted(count for count in self.loader if count)
        below = max((count for count in known if count < workers), default=None)
        above = min((count for count in known if count > workers), default=None)
        if below is None or above is None:
            return self.loader[known[-1] if above is None else known[0]]
        share = (workers - below) / (above - below)
        return 1.0 / ((1 - share) / self.loader[below] + share / self.loader[above])

    @property
    def waiting(self) -> float:
        """The fraction of time in which the step waits for data."""
        return max(0.0, 1.0 - self.step / self.both)

    @property
    def verdict(self) -> str:
        """The limit: "data" (loading takes longer than the step), "step", or "cores" (each alone would be faster)."""
        load = self.loader_seconds(self.workers)
        if self.workers > 0 and self.both > SLOWER * max(self.step, load):
            return "cores"
        return "data" if load > self.step else "step"

    @property
    def limit(self) -> str:
        """The limiting stage: the longest of the loader or of the step, or of all where they compete for cores."""
        parts = {"data": (LOADING,), "step": (STEP,), "cores": (LOADING, STEP)}[self.verdict]
        return max((one for one in self.stages if one.part in parts), key=lambda one: one.seconds).name

    @property
    def workers_needed(self) -> int | None:
        """The fewest workers with which the loader alone keeps up with the step; None if even one per core does not."""
        counts = range(1, max([1, self.cores, *self.loader]) + 1)
        return next((count for count in counts if self.loader_seconds(count) <= self.step), None)

    def advice(self) -> str:
        """Advice on what would help."""
        needed, text = self.workers_needed, ADVICE[self.limit]
        if self.verdict == "cores":
            slower = f"{duration(self.both)} together, {duration(self.loader_seconds(self.workers))} and {duration(self.step)} alone"
            return f"Loader and step share the cores ({slower}): more workers do not help. {text}"
        if self.workers == 0 and needed is not None and self.waiting > NEGLIGIBLE:
            return f"Without workers, loading and computing take turns. workers={needed} would load during the step."
        if self.verdict == "step":
            return text
        if needed is not None:
            return f"workers={needed} would keep up with the step. {text}"
        return f"Not even {max([self.cores, *self.loader])} workers (one for each core) would keep up with the step. {text}"

    def to_json(self) -> str:
        """Everything as JSON."""
        known = {
            **asdict(self),
            "loader": {str(count): seconds for count, seconds in self.loader.items()},
            "limit": self.limit,
            "verdict": self.verdict,
            "waiting": self.waiting,
            "workers_needed": self.workers_needed,
            "advice": self.advice(),
        }
        return json.dumps(known, indent=1)

    def __str__(self) -> str:
        return "\n\n".join([self._verdict(), self._parts(), self._stages(), *self.notes])

    def _verdict(self) -> str:
        where = {"data": "data loading", "step": "the step", "cores": "the cores, which loader and step share"}[
            self.verdict
        ]
        return f"Bottleneck: {where} ({self.limit}). The step waits for data {self.waiting:.0%} of the time. {self.advice()}"

    def _parts(self) -> str:
        rows = [["measured", "a batch", "examples/s"]]
        for count, seconds in sorted(self.loader.items()):
            rows.append([f"loader alone, workers={count}", *self._speed(seconds)])
        rows.append(["step alone", *self._speed(self.step)])
        rows.append([f"both, workers={self.workers}", *self._speed(self.both)])
        return table(rows, left=1)

    def _speed(self, seconds: float) -> tuple[str, str]:
        return duration(seconds), f"{self.batch / max(seconds, 1e-12):,.0f}"

    def _stages(self) -> str:
        rows = [["stage", "part", "a batch", "share"]]
        for one in self.stages:
            total = sum(other.seconds for other in self.stages if other.part == one.part)
            rows.append([one.name, one.part, duration(one.seconds), f"{one.seconds / max(total, 1e-12):.0%}"])
        return table(rows, left=2)
