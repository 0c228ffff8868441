"""The report of a parameter server's run: every update, the staleness of its gradient, and how long the workers waited."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from ..mesh.mesh import Mesh, run_collective
from ..records import dataclass


class ServerUpdate(NamedTuple):
    """A gradient that the server has applied. Times in seconds."""

    worker: int
    step: int  # of the worker: 0, 1, ...
    staleness: (
        int  # updates that were made after the worker was sent its parameters and before its gradient was applied
    )
    ahead: int  # steps by which the worker was ahead of the slowest when it was sent its parameters
    loss: float  # of the worker's batch
    computing: float  # from receiving the parameters to the gradients
    waiting: float  # for the parameters, before that
    time: float  # since the beginning of the run


@dataclass(frozen=True)
class ServerReport:
    """All updates of a run, in order. Printed, it is a table."""

    staleness: int | None  # the bound
    workers: int
    updates: tuple[ServerUpdate, ...]

    @property
    def updates_per_second(self) -> float:
        """The rate from the first update to the last: this excludes compilation."""
        if len(self.updates) < 2:
            return 0.0
        return (len(self.updates) - 1) / max(self.updates[-1].time - self.updates[0].time, 1e-9)

    def of(self, worker: int) -> list[ServerUpdate]:
        """The updates by one worker."""
        return [u for u in self.updates if u.worker == worker]

    def histogram(self, worker: int | None = None) -> dict[int, int]:
        """The number of gradients by staleness, of all workers or of one."""
        counts = Counter(u.staleness for u in (self.updates if worker is None else self.of(worker)))
        return dict(sorted(counts.items()))

    def waiting(self, worker: int) -> float:
        """The fraction of time that a worker waited for parameters, without its first step, which compiles."""
        later = self.of(worker)[1:]
        total = sum(u.waiting + u.computing for u in later)
        return sum(u.waiting for u in later) / total if total else 0.0

    def __str__(self) -> str:
        bound = "unbounded staleness" if self.staleness is None else f"staleness {self.staleness}"
        lines = [
            f"{bound}, {self.workers} workers: {len(self.updates)} updates, {self.updates_per_second:.0f} a second"
        ]
        for worker in range(self.workers):
            most = max((u.ahead for u in self.of(worker)), default=0)
            stale = ", ".join(f"{count} x {n}" for n, count in self.histogram(worker).items()) or "no gradients"
            lines.append(
                f"worker {worker}: waited {self.waiting(worker):.0%}, at most {most} steps ahead; stale by {stale}"
            )
        return "\n".join(lines)


def share_updates(updates: list[ServerUpdate], mesh: Mesh, axis: str) -> tuple[ServerUpdate, ...]:
    """Share the updates recorded by the server with every process."""
    if mesh.size(axis) == 1:
        return tuple(updates)
    rows = np.asarray(updates, np.float64).reshape(-1, len(ServerUpdate._fields))
    count = int(run_collective("broadcast", np.asarray(len(rows), np.int64), axis, mesh.axes, 0))
    shared = np.zeros((count, rows.shape[1]))
    shared[: len(rows)] = rows
    found = run_collective("broadcast", shared, axis, mesh.axes, 0).tolist() if count else []
    return tuple(ServerUpdate(*map(int, row[:4]), *row[4:]) for row in found)
