"""The convolutions that programs compute on a measured machine, and by which algorithms.

Winograd's algorithm and FFT need fewer operations than the direct one, and compilers take them on some machines only. A projection has
to know which algorithm a convolution would take on the other machine: that of the most similar convolution which was measured there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ..records import dataclass

FAST = re.compile(r"\b(WINOGRAD|FFT)")  # algorithms that need fewer operations than a kernel's name implies
SIMILAR = 2.0  # at most this ratio of channels: algorithms are chosen by the number of channels
_NAME = re.compile(r"(conv[a-z ]*?) ([\dx]+) (\d+)->(\d+)( stride [\dx]+)?( groups \d+)?(?= |$)")


@dataclass(frozen=True)
class MeasuredConvolution:
    """A convolution, and the fraction of the roofline that it reaches.

    >>> one = MeasuredConvolution("conv 3x3 64->128 stride 2x2 DIRECT", 0.75)
    >>> one.is_fast, one.likeness("conv 3x3 96->128 stride 2x2 WINOGRAD"), one.likeness("conv 3x3 64->128 DIRECT")
    (False, 1.5, None)
    """

    name: str  # of its kernel
    efficiency: float

    @property
    def is_fast(self) -> bool:
        return is_fast(self.name)

    def likeness(self, name: str) -> float | None:
        """The largest ratio of their channels, 1 if equal; None for a convolution with another filter, stride or groups."""
        mine, other = _NAME.match(self.name), _NAME.match(name)
        if mine is None or other is None or _kind(mine) != _kind(other):
            return None
        return max(math.exp(abs(math.log(int(mine[i]) / int(other[i])))) for i in (3, 4))


def is_fast(name: str) -> bool:
    """Whether the kernel of this name is a convolution by an algorithm of fewer operations."""
    return FAST.search(name) is not None


def efficiency_there(name: str, own: float, measured: Sequence[MeasuredConvolution], typical: float) -> float:
    """The efficiency of a convolution on a machine where others were `measured`; `own` is that here, `typical` that of other kernels.

    It carries over, unless the most similar convolution there is computed by an algorithm of the other class, or none at all is fast there.

    >>> direct, winograd = MeasuredConvolution("conv 3x3 64->64 DIRECT", 0.75), MeasuredConvolution("conv 3x3 64->64 WINOGRAD", 1.5)
    >>> [efficiency_there("conv 3x3 48->64 DIRECT", 0.5, [there], 0.25) for there in (direct, winograd)]
    [0.5, 1.5]
    >>> [efficiency_there("conv 3x3 48->64 WINOGRAD", 1.25, [there], 0.25) for there in (direct, winograd)]
    [0.75, 1.25]
    """
    each = ((one.likeness(name), one) for one in measured)
    similar = [(ratio, one) for ratio, one in each if ratio is not None and ratio <= SIMILAR]
    if similar:
        _, nearest = min(similar, key=lambda pair: (pair[0], pair[1].is_fast != is_fast(name)))
        return own if nearest.is_fast == is_fast(name) else nearest.efficiency
    if is_fast(name) and measured and not any(one.is_fast for one in measured):
        return typical
    return own


def _kind(found: re.Match[str]) -> tuple[str, str, str | None, bool]:
    """What has to be equal: direction, filter, stride, and whether there are groups."""
    return found[1], found[2], found[5], found[6] is not None
