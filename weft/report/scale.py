"""Axes: round numbers to mark, how they are written, and where a value lies in the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)  # distances between marks that people find round, times a power of ten
SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
LARGEST = 1e300  # beyond it differences of values overflow


@dataclass(frozen=True)
class Axis:
    """A range of values, the marks in it, and their texts."""

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end.

        >>> axis([0.0, 10.0]).place(2.5)
        0.25
        """
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def axis(
    values: Iterable[float], *, count: int = 5, log: bool = False, tight: bool = False, whole: bool = False
) -> Axis:
    """An axis for all finite values: about `count` marks, ends at marks (`tight`: ends at the values), marks at `whole` numbers only.

    >>> axis([0.03, 0.97]).labels
    ('0', '0.2', '0.4', '0.6', '0.8', '1.0')
    """
    known = [v for v in values if math.isfinite(v) and abs(v) <= LARGEST and (v > 0 or not log)]
    low, high = (float(min(known)), float(max(known))) if known else (0.0, 1.0)
    if log and known:
        return _log_axis(low, high, count)
    low, high = _apart(low, high, whole)
    step = round_step((high - low) / count, whole)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    ticks = _multiples(low, high, step)
    return Axis(low, high, ticks, numbers(ticks, step))


def round_step(distance: float, whole: bool = False) -> float:
    """The smallest round number that is not below a distance.

    >>> round_step(0.13), round_step(30), round_step(0.2, whole=True)
    (0.2, 50.0, 1.0)
    """
    power = math.floor(math.log10(distance))
    unit = 10.0**power
    step = next(s for s in STEPS if s * unit >= distance * (1 - 1e-9))
    step = float(f"{step}e{power}")  # not a product: 3 * 0.1 is not 0.3
    return max(1.0, float(math.ceil(step))) if whole and step < 5 else step


def _apart(low: float, high: float, whole: bool) -> tuple[float, float]:
    """Room around values that are all the same, or as good as that."""
    size = max(abs(low), abs(high))
    if high - low > 1e-9 * size:
        return low, high
    if whole:
        return low - 1, high + 1
    return (low - 0.1 * size, high + 0.1 * size) if size else (0.0, 1.0)


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return tuple(0.0 if n == 0 else n * step for n in range(first, last + 1))


def _log_axis(low: float, high: float, count: int) -> Axis:
    """Marks at powers of ten; with 2 and 5 between them where there are few; plain round numbers where there are fewer still."""
    room = min(max((high / low) ** 0.05, 1.02), 1e3)
    low, high = max(low / room, 5e-324), high * room  # not zero, the smallest number there is
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1)
    stride = max(1, math.ceil((last - first) / (count + 1)))
    for parts in ((1,), (1, 2, 5)):
        ticks = [t for p in powers if p % stride == 0 for m in parts if low <= (t := float(f"{m}e{p}")) <= high]
        if len(ticks) >= 3:
            return Axis(low, high, tuple(ticks), tuple(short(t) for t in ticks), log=True)
    step = round_step((high - low) / count)
    ticks = list(_multiples(low, high, step))
    return Axis(low, high, tuple(ticks), numbers(ticks, step), log=True)


def numbers(values: Sequence[float], step: float) -> tuple[str, ...]:
    """Texts of marks that lie a step apart: as many digits as tell them apart, the same suffix for all.

    >>> numbers([0, 50000, 100000], 50000)
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
    """A number by itself, in few characters.

    >>> [short(v) for v in (0.98765, 1234567, 1e-7, 12, float("nan"))]
    ['0.988', '1.23M', '1e-7', '12', 'nan']
    """
    size = abs(value)
    if not math.isfinite(value):
        return str(float(value))
    if size >= 1e15 or 0 < size < 1e-4:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{_trimmed(mantissa)}e{int(exponent)}"
    divisor, suffix = _suffix(size)
    scaled = value / divisor
    return (f"{scaled:,.0f}" if abs(scaled) >= 999.5 else f"{scaled:.{digits}g}") + suffix


def _suffix(size: float) -> tuple[float, str]:
    """Thousands are still written out; from ten thousand on a letter says it."""
    return next(((d, s) for d, s in SUFFIXES if size >= max(d, 1e4)), (1.0, ""))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(seconds: float) -> str:
    """A time as people say it.

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
