"""Ratios of machines as they were published, beside those of a projection, and which part of a miss comes from where.

A ratio of efficiencies is the ratio of speeds over the ratio of powers. A projection gives every machine the efficiency that the kernels
reach where they were measured, and takes power limits for watts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from ..records import dataclass
from .machines import PublishedResult, published
from .profile_text import table
from .side_by_side import MachineRow


@dataclass(frozen=True)
class PublishedRatio:
    """One machine over another, for the same network and batch."""

    machines: tuple[str, str]
    source: str
    speed: float  # examples/s, published
    projected_speed: float
    power: float  # watts, published
    projected_power: float

    @property
    def efficiency(self) -> float:
        """Examples/s/W, published."""
        return self.speed / self.power

    @property
    def projected_efficiency(self) -> float:
        return self.projected_speed / self.projected_power

    def to_dict(self) -> dict[str, Any]:
        derived = {"efficiency": self.efficiency, "projected_efficiency": self.projected_efficiency}
        return asdict(self) | derived


def published_ratios(
    rows: Sequence[MachineRow], network: str, file: str | Path | None = None
) -> tuple[PublishedRatio, ...]:
    """The ratios of all pairs of projected machines for which results of this network and batch were published, the more efficient machine first."""
    known = {(one.network, one.machine, one.format, one.batch): one for one in published(file)}
    keys = [
        (row, (network, row.machine, row.format, row.batch)) for row in rows if row.how == "projected" and row.watts
    ]
    both = [(row, known[key]) for row, key in keys if key in known]
    both.sort(key=lambda pair: -pair[1].images_per_second_per_watt)
    return tuple(_ratio(*first, *second) for first, second in combinations(both, 2))


def _ratio(a: MachineRow, first: PublishedResult, b: MachineRow, second: PublishedResult) -> PublishedRatio:
    assert a.watts is not None
    assert b.watts is not None
    return PublishedRatio(
        (_name(a), _name(b)), first.source, first.images_per_second / second.images_per_second, a.per_second / b.per_second,
        first.watts / second.watts, a.watts / b.watts,
    )  # fmt: skip


def _name(row: MachineRow) -> str:
    return row.machine if row.format == "float32" else f"{row.machine}:{row.format}"


def published_text(ratios: Sequence[PublishedRatio], network: str, batch: int) -> str:
    """The ratios as a table."""
    lines = [["published against projected", "examples/s", "", "off by", "examples/s/W", "", "off by", "by speed", "by power"]]  # fmt: skip
    for one in ratios:
        speed, power = one.projected_speed / one.speed, one.power / one.projected_power
        lines.append(
            [" / ".join(one.machines), _times(one.speed), _times(one.projected_speed), _off(speed)]
            + [_times(one.efficiency), _times(one.projected_efficiency), _off(speed * power), _off(speed), _off(power)]
        )
    sources = ", ".join(dict.fromkeys(one.source for one in ratios))
    why = "by speed: the published programs did not reach the same share of both machines' peaks; by power: they drew other watts than the power limits"
    return f"{table(lines, left=1)}\npublished for {network} at batch {batch}: {sources}\n{why}"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x"


def _off(ratio: float) -> str:
    return f"{ratio - 1:+.0%}"
