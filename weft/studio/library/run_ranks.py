"""The processes of a training over several: what each rank has reported last, in events {type: "rank", rank, pid, examples_per_second, memory}."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from statistics import fmean
from typing import Any

from ...records import dataclass

KEPT = 60  # speeds of a rank
SILENT = 30.0  # seconds behind the others, after which a rank counts as silent
BEHIND = 0.1  # of the mean speed, after which a rank counts as slow


@dataclass
class RankReading:
    """What a rank has reported: its process, its speed and its memory, and its last speeds."""

    rank: int
    time: float = 0.0
    pid: int | None = None
    host: str = ""
    speed: float | None = None  # examples a second
    memory: float | None = None  # bytes
    speeds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, event: Mapping[str, Any], when: float) -> None:
        """Keep what an event says; what it leaves out stays as it was."""
        self.time = when
        self.pid = int(event["pid"]) if isinstance(event.get("pid"), int) else self.pid
        self.host = str(event.get("host") or self.host)
        self.speed, self.memory = _number(event.get("examples_per_second"), self.speed), _number(event.get("memory"), self.memory)  # fmt: skip
        if self.speed is not None:
            self.speeds.append(self.speed)


def _number(value: Any, known: float | None) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else known


@dataclass(frozen=True)
class RankStatus:
    """A rank beside the others: its share of the fastest one's speed, and what is wrong with it."""

    reading: RankReading
    share: float
    problem: str = ""


def rank_statuses(ranks: Sequence[RankReading], is_running: bool) -> list[RankStatus]:
    """All ranks in their order. Ranks that are slower than the others, or have not reported for long, are marked."""
    speeds = [one.speed for one in ranks if one.speed]
    fastest, mean = max(speeds, default=0.0), fmean(speeds) if speeds else 0.0
    newest = max((one.time for one in ranks), default=0.0)
    found = []
    for one in sorted(ranks, key=lambda one: one.rank):
        silence = newest - one.time
        problem = ""
        if is_running and silence > SILENT:
            problem = f"silent for {silence:.0f} s"
        elif mean and one.speed is not None and one.speed < (1 - BEHIND) * mean:
            problem = f"{100 * (1 - one.speed / mean):.0f} % slower than the mean"
        found.append(RankStatus(one, (one.speed or 0.0) / fastest if fastest else 0.0, problem))
    return found
