"""The roofline of the machine: the peak of its array, and the bandwidth of its weight memory."""

from __future__ import annotations

from math import inf

from ..records import dataclass
from .machine import TpuMachine


@dataclass(frozen=True)
class TpuRoof:
    """The roofline. Operational intensity counts operations per byte of weights; activations stay on the chip.

    >>> roof = TpuRoof(TpuMachine())
    >>> round(roof.ridge), roof.tops(200), roof.tops(2888)
    (1349, 13.6, 91.7504)
    """

    machine: TpuMachine

    @property
    def bandwidth(self) -> float:
        return self.machine.weight_bandwidth

    @property
    def ridge(self) -> float:
        """The ridge point: multiply-accumulates per byte of weights above which the machine is compute-bound."""
        return self.machine.cells * self.machine.clock / self.machine.weight_bandwidth

    def tops(self, intensity: float) -> float:
        """The attainable TOPS at a number of multiply-accumulates per byte of weights."""
        return min(self.machine.peak_tops, 2 * intensity * self.bandwidth / 1e12)

    def seconds(self, flops: float, nbytes: float, *, itemsize: int = 4) -> float:
        """The least time for so much work; the array multiplies bytes alone."""
        if flops and itemsize > 1:
            return inf
        return max(flops / (self.machine.peak_tops * 1e12), nbytes / self.bandwidth)

    def __str__(self) -> str:
        return f"{self.machine.peak_tops:.3g} TOPS in int8, weights at {self.bandwidth / 1e9:g} GB/s (a modelled TPU; computation on its host is not counted)"
