"""Chart axes: round tick positions, tick labels, and the mapping of values to positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..records import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # round tick distances, times a power of ten
SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
LARGEST = 1e300  # differences of larger values overflow


@dataclass(frozen=True)
class ChartAxis:
    """A range of values with its ticks and their labels."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False

    def position(self, value: float) -> float:
        """The relative position of a value: 0 at the low end, 1 at the high end.

        >>> make_axis([0.0, 10.0]).position(2.5)
        0.25
        """
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def make_axis(
    values: Iterable[float], *, count: int = 5, log: bool = False, tight: bool = False, whole: bool = False
) -> ChartAxis:
    """An axis for all finite values with about `count` ticks. It ends at ticks (`tight`: at the values); `whole`: integer ticks only.

    >>> make_axis([0.03, 0.97]).labels
    ('0', '0.2', '0.4', '0.6', '0.8', '1.0')
    """
    known = [v for v in values if math.isfinite(v) and abs(v) <= LARGEST and (v > 0 or not log)]
    low, high = (float(min(known)), float(max(known))) if known else (0.0, 1.0)
    if log and known:
        return _log_axis(low, high, count)
    low, high = _widen(low, high, whole)
    step = round_step((high - low) / count, whole)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    ticks = _multiples(low, high, step)
    return ChartAxis(low, high, ticks, tick_labels(ticks, step))


def round_step(distance: float, whole: bool = False) -> float:
    """The smallest round tick distance that is at least `distance`.

    >>> round_step(0.13), round_step(30), round_step(0.2, whole=True)
    (0.2, 50.0, 1.0)
    """
    power = math.floor(math.log10(distance))
    unit = 10.0**power
    step = next(s for s in STEPS if s * unit >= distance * (1 - 1e-9))
    step = float(f"{step}e{power}")  # parsed, because the product is not exact: 3 * 0.1 != 0.3
    return max(1.0, float(math.ceil(step))) if whole and step < 5 else step


def _widen(low: float, high: float, whole: bool) -> tuple[float, float]:
    """Widen the range if all values are (nearly) equal."""
    size = max(abs(low), abs(high))
    if high - low > 1e-9 * size:
        return low, high
    if whole:
        return low - 1, high + 1
    return (low - 0.1 * size, high + 0.1 * size) if size else (0.0, 1.0)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return tuple(0.0 if n == 0 else n * step for n in range(first, last + 1))


def _log_axis(low: float, high: float, count: int) -> ChartAxis:
    """Ticks at powers of ten; also at 2 and 5 times them if those are few; at linear steps if these are few too."""
    margin = min(max((high / low) ** 0.05, 1.02), 1e3)
    low, high = max(low / margin, 5e-324), high * margin  # the smallest positive float instead of zero
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1)
    stride = max(1, math.ceil((last - first) / (count + 1)))
    for parts in ((1,), (1, 2, 5)):
        ticks = [t for p in powers if p % stride == 0 for m in parts if low <= (t := float(f"{m}e{p}")) <= high]
        if len(ticks) >= 3:
            return ChartAxis(low, high, tuple(ticks), tuple(short(t) for t in ticks), log=True)
    step = round_step((high - low) / count)
    ticks = list(_multiples(low, high, step))
    return ChartAxis(low, high, tuple(ticks), tick_labels(ticks, step), log=True)


def tick_labels(values: Sequence[float], step: float) -> tuple[str, ...]:
    """Labels of ticks at a distance of `step`: enough digits to distinguish them, the same suffix for all.

    >>> tick_labels([0, 50000, 100000], 50000)
    ('0', '50k', '100k')
    """
    largest = max((abs(v) for v in values), default=0.0)
    if largest >= 1e15 or (0 < largest < 1e-4):
        digits = math.floor(math.log10(largest)) - math.floor(math.log10(step)) + 2
        return tuple(short(v, max(3, digits)) for v in values)
    divisor, suffix = _suffix(largest)
    if _decimals(step / divisor) > 2:
        divisor, suffix = 1.0, ""
    digits = _decimals(step / divisor)
    return tuple(f"{v / divisor:,.{digits}f}{suffix}" if v else "0" for v in values)


def _decimals(step: float) -> int:
    return next((d for d in range(12) if abs(round(step, d) - step) < 1e-6 * step), 12)


def short(value: float, digits: int = 3) -> str:
    """A number in few characters.

    >>> [short(v) for v in (0.98765, 1234567, 1e-7, 12, float("nan"))]
    ['0.988', '1.23M', '1e-7', '12', 'nan']
    """
    size = abs(value)
    if not math.isfinite(value):
        return str(float(value))
    if size >= 1e15 or 0 < size < 1e-4:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{_strip_zeros(mantissa)}e{int(exponent)}"
    divisor, suffix = _suffix(size)
    scaled = value / divisor
    return (f"{scaled:,.0f}" if abs(scaled) >= 999.5 else f"{scaled:.{digits}g}") + suffix


def _suffix(size: float) -> tuple[float, str]:
    """The divisor and SI suffix of a number; numbers below ten thousand are written out."""
    return next(((d, s) for d, s in SUFFIXES if size >= max(d, 1e4)), (1.0, ""))


def _strip_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """A duration as text.

    >>> duration(0.25), duration(75), duration(7384)
    ('0.25 s', '1 min 15 s', '2 h 3 min')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if seconds < 60:
        return f"{short(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
