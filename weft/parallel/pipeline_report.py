"""The report of a pipeline step: times of passes, bubbles, and the memory stored for backward passes."""

from __future__ import annotations

from dataclasses import field
from typing import NamedTuple

import numpy as np

from ..mesh.mesh import Mesh, run_collective
from ..records import dataclass
from .pipeline_schedule import BACKWARD, FORWARD, ideal_bubble

PHASES = (FORWARD, BACKWARD, "update", "wait")


class StageEvent(NamedTuple):
    """A pass over a micro-batch, an update, or a wait for another stage; times in nanoseconds of one clock."""

    phase: str
    micro_batch: int
    begin: int
    end: int

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1e9


@dataclass
class StageRecord:
    """The record of one stage in a step."""

    stage: int
    events: list[StageEvent] = field(default_factory=list)
    stored: int = 0  # peak number of micro-batches between their forward and their backward pass
    stored_bytes: int = 0  # peak memory stored for backward passes

    def seconds(self, *phases: str) -> float:
        return sum(e.seconds for e in self.events if e.phase in phases)


@dataclass(frozen=True)
class PipelineReport:
    """The report of a step of all stages. Printed, it is a table; `weft.report.pipeline_svg` draws it."""

    schedule: str
    micro_batches: int
    stages: tuple[StageRecord, ...]
    layers: tuple[str, ...]  # of each stage, from the first to the last
    costs: tuple[float, ...]  # of each stage, as used to choose the cuts

    @property
    def begin(self) -> int:
        return min(e.begin for s in self.stages for e in s.events)

    @property
    def seconds(self) -> float:
        """From the first pass to the end of the last backward pass: updates are not part of the pipeline."""
        return (max(e.end for s in self.stages for e in s.events if e.phase == BACKWARD) - self.begin) / 1e9

    def idle(self, stage: int) -> float:
        """The fraction of the time in which a stage was idle."""
        return max(0.0, 1.0 - self.stages[stage].seconds(FORWARD, BACKWARD) / self.seconds)

    @property
    def bubble(self) -> float:
        """The measured bubble: the mean idle fraction of all stages."""
        return sum(self.idle(i) for i in range(len(self.stages))) / len(self.stages)

    @property
    def ideal(self) -> float:
        """The bubble if all stages took equally long and messages took no time."""
        return ideal_bubble(len(self.stages), self.micro_batches)

    @property
    def expected(self) -> float:
        """The bubble with these unequal stages, if each pass took its mean time and messages took none."""
        times = [s.seconds(FORWARD, BACKWARD) / self.micro_batches for s in self.stages]
        total = sum(times) + (self.micro_batches - 1) * max(times)
        return 1.0 - self.micro_batches * sum(times) / (len(times) * total)

    def __str__(self) -> str:
        head = (
            f"{self.schedule}, {len(self.stages)} stages, {self.micro_batches} micro-batches: {1e3 * self.seconds:.1f} ms, "
            f"idle {self.bubble:.1%} measured, {self.ideal:.1%} for equal stages, {self.expected:.1%} for these"
        )
        rows: list[tuple[str, ...]] = [("stage", "layers", "forward", "backward", "idle", "stored", "bytes")]
        for i, stage in enumerate(self.stages):
            times = [f"{1e3 * stage.seconds(p) / self.micro_batches:.2f} ms" for p in (FORWARD, BACKWARD)]
            stored = (f"{stage.stored}", f"{stage.stored_bytes:,}")
            rows.append((str(i), self.layers[i], *times, f"{self.idle(i):.1%}", *stored))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([head, *lines])


def gather_records(own: StageRecord, mesh: Mesh, axis: str) -> tuple[StageRecord, ...]:
    """The records of all stages, in every process."""
    numbers = [[PHASES.index(e.phase), e.micro_batch, e.begin, e.end] for e in own.events]
    found = _from_all(np.asarray(numbers, np.int64).reshape(-1, 4), mesh, axis)
    stored = _from_all(np.asarray([[own.stored, own.stored_bytes]], np.int64), mesh, axis)
    records = []
    for stage, (rows, kept) in enumerate(zip(found, stored, strict=True)):
        events = [StageEvent(PHASES[p], m, begin, end) for p, m, begin, end in rows.tolist()]
        records.append(StageRecord(stage, events, *kept[0].tolist()))
    return tuple(records)


def _from_all(rows: np.ndarray, mesh: Mesh, axis: str) -> list[np.ndarray]:
    """The rows of every stage, which may have different numbers of them."""
    if mesh.size(axis) == 1:
        return [rows]

    def gathered(x: np.ndarray) -> np.ndarray:
        return run_collective("all_gather", x, axis, mesh.axes, "summed")

    counts = gathered(np.asarray(len(rows), np.int64)).tolist()
    padded = np.zeros((max(counts), rows.shape[1]), np.int64)
    padded[: len(rows)] = rows
    return [part[:count] for part, count in zip(gathered(padded), counts, strict=True)]
