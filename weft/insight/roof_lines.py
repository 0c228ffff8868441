"""The roofline of a machine as lines of a plot: the slope of its bandwidth, and a flat part for each number width with its own peak."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..records import dataclass
from ..runtime.facts import Roofline

WIDTHS = {4: "32 bits", 2: "16 bits", 1: "8 bits"}
PROBE = 1e12  # operations without bytes: their time gives the peak


@dataclass(frozen=True)
class RoofLines:
    """Bytes per second, and operations per second by number width. Without a peak, arithmetic is unbounded."""

    bandwidth: float | None
    peaks: Mapping[str, float]

    @property
    def peak(self) -> float | None:
        """The peak of the widest numbers: float32."""
        return next(iter(self.peaks.values()), None)


def roof_lines(roof: Roofline) -> RoofLines:
    """The lines of a roofline; widths with the same peak share a line."""
    found: dict[str, float] = {}
    for itemsize, name in WIDTHS.items():
        seconds = roof.seconds(PROBE, 0.0, itemsize=itemsize)
        peak = PROBE / seconds if seconds else math.inf
        if (
            peak
            and math.isfinite(peak)
            and not any(math.isclose(peak, known, rel_tol=1e-3) for known in found.values())
        ):
            found[name] = peak
    return RoofLines(roof.bandwidth if math.isfinite(roof.bandwidth) else None, found)
