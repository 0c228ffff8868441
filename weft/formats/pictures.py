"""Pictures of number formats as SVG: where numbers lie, which magnitudes tensors have, what a radix point is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..report import svg
from .number_format import FixedFormat, FloatFormat, NumberFormat, number_format
from .tensor_fit import LEAST

WIDTH, MARGIN, LINE = 720, 16, 18
BAR, ROW = 12, 34  # heights of the range of a format, and of the histogram of a tensor
FEW_ROWS, TALL_ROW = 3, 84
MOST_ROWS = 60
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power(exponent: int) -> str:
    """A power of two as it is written.

    >>> power(-14)
    '2⁻¹⁴'
    """
    return "2" + str(exponent).translate(_RAISED)


class _Exponents:
    """A horizontal axis of powers of two."""

    def __init__(self, low: int, high: int, left: float, right: float) -> None:
        self.low, self.high, self.left, self.right = low, high, left, right

    def x(self, exponent: float) -> float:
        part = (min(max(exponent, self.low), self.high) - self.low) / (self.high - self.low)
        return self.left + part * (self.right - self.left)

    def ticks(self, top: float, bottom: float) -> list[str]:
        span = self.high - self.low
        step = next(s for s in (2, 4, 8, 16, 32, 64) if span / s <= 12)
        parts = []
        for exponent in range(math.ceil(self.low / step) * step, self.high + 1, step):
            parts.append(svg.line(self.x(exponent), top, self.x(exponent), bottom, "grid"))
            parts.append(svg.text(self.x(exponent), bottom + LINE, power(exponent), "soft", anchor="middle"))
        return parts


def magnitudes(
    rows: Mapping[str, np.ndarray],
    formats: Sequence[str | NumberFormat],
    title: str,
    *,
    against: str | NumberFormat | None = None,
    note: str = "",
) -> str:
    """Histograms of exponents, floor(log2 |x|), one for each name, below the ranges of formats, as SVG.

    The range of a float is solid for normal numbers and pale for subnormal ones. Counts are those of a survey: they begin at 2^-150. Values
    that vanish or overflow in the format `against` have another colour.

        >>> counts = np.bincount([140, 145, 145], minlength=279)
        >>> magnitudes({"weight": counts}, ["float16"], "Magnitudes")[:4]
        '<svg'
    """
    shown, wanted = dict(list(rows.items())[:MOST_ROWS]), [number_format(one) for one in formats]
    left = MARGIN + min(190.0, max(svg.text_width(name) for name in [*shown, *(one.name for one in wanted)])) + 10
    axis = _Exponents(*_limits(shown, wanted), left, WIDTH - MARGIN)
    top = MARGIN + 2.0 * LINE
    middle = top + (BAR + 6) * len(wanted) + 10
    row = ROW if len(shown) > FEW_ROWS else TALL_ROW
    bottom = middle + row * len(shown)
    limits = None if against is None else number_format(against)
    parts = [svg.text(MARGIN, MARGIN + 12, title, "title"), *axis.ticks(top, bottom)]
    for number, one in enumerate(wanted):
        parts += _range(axis, one, number, top + number * (BAR + 6))
    for number, (name, counts) in enumerate(shown.items()):
        parts += _histogram(axis, name, counts, middle + number * row, row, limits)
    parts.append(svg.text((left + WIDTH - MARGIN) / 2, bottom + 2 * LINE, "magnitude |x|", "soft", anchor="middle"))
    hidden = len(rows) - len(shown)
    more = "; ".join(part for part in (note, f"{hidden} more are not shown" if hidden else "") if part)
    if more:
        parts.append(svg.text(MARGIN, bottom + 3 * LINE, more, "soft"))
    return svg.document(WIDTH, bottom + (3.5 if more else 2.5) * LINE + 8, title, parts)


def _limits(rows: Mapping[str, np.ndarray], formats: Sequence[NumberFormat]) -> tuple[int, int]:
    """From the smallest to the largest exponent of tensors and of formats; formats with 8 exponent bits end where it suits the others."""
    low, high = [], []
    for counts in rows.values():
        used = np.flatnonzero(counts)
        if len(used):
            low.append(int(used[0]) + LEAST)
            high.append(int(used[-1]) + LEAST + 1)
    for one in formats:
        if not isinstance(one, FloatFormat) or one.exponent_bits < 8:
            low.append(math.floor(math.log2(one.step)))
            high.append(math.ceil(math.log2(one.largest)))
    return (min(low, default=-40) - 2, max(high, default=16) + 2) if low else (-40, 16)


def _range(axis: _Exponents, format: NumberFormat, number: int, y: float) -> list[str]:
    first, normal, last = (math.log2(v) for v in (format.step, format.smallest_normal, format.largest))
    kind = f"f{number % len(svg.SERIES)}"
    note = f"{format.name}: {format.step:.3g} to {format.largest:.6g}"
    parts = [svg.text(axis.left - 10, y + BAR - 2, format.name, anchor="end", note=note)]
    if axis.x(normal) > axis.x(first):
        parts.append(svg.rect(axis.x(first), y, axis.x(normal) - axis.x(first), BAR, kind, note=note, opacity=0.35))
    parts.append(svg.rect(axis.x(normal), y, max(1.0, axis.x(last) - axis.x(normal)), BAR, kind, note=note))
    return parts


def _histogram(
    axis: _Exponents, name: str, counts: np.ndarray, y: float, row: float, limits: NumberFormat | None
) -> list[str]:
    height, most = row - 8, max(1, int(counts.max(initial=0)))
    total = max(1, int(counts.sum()))
    fitted = svg.fit(name, axis.left - 10 - MARGIN, middle=True)
    parts = [svg.text(axis.left - 10, y + row - 10, fitted, anchor="end", note=name)]
    for place in np.flatnonzero(counts):
        exponent, size = int(place) + LEAST, height * counts[place] / most
        if axis.low <= exponent < axis.high:
            wide = axis.x(exponent + 1) - axis.x(exponent)
            note = f"{100 * counts[place] / total:.2f} % of values are {power(exponent)} to {power(exponent + 1)}"
            kind = "f3" if limits is not None and _is_lost(exponent, limits) else "f5"
            tall = max(size, 0.7)
            parts.append(svg.rect(axis.x(exponent), y + row - 4 - tall, max(wide - 0.6, 0.6), tall, kind, note=note))
    return parts


def _is_lost(exponent: int, format: NumberFormat) -> bool:
    """Whether all values of an exponent become 0 or overflow: those below half of the smallest step vanish."""
    return exponent + 1 <= math.log2(format.step) - 1 or 2.0**exponent > format.largest


def number_line(formats: Sequence[str | NumberFormat], high: float, title: str) -> str:
    """Every number of small formats between 0 and `high` as a tick, one line for each format, as SVG.

    >>> number_line(["float8_e5m2", "q3.4"], 8.0, "Numbers from 0 to 8")[:4]
    '<svg'
    """
    wanted = [number_format(one) for one in formats]
    left = MARGIN + max(svg.text_width(one.name) for one in wanted) + 14
    right, top = WIDTH - MARGIN - 8, MARGIN + 2.2 * LINE
    parts = [svg.text(MARGIN, MARGIN + 12, title, "title")]
    for number, one in enumerate(wanted):
        y = top + 44 * number
        values = one.values()
        inside = values[values <= high]
        parts.append(svg.text(left - 12, y + 14, one.name, anchor="end"))
        parts.append(svg.text(left - 12, y + 28, f"{len(inside)} numbers", "soft", anchor="end", size=10))
        parts.append(svg.line(left, y + 28, right, y + 28, "axis"))
        for value in inside:
            x = left + (right - left) * value / high
            parts.append(svg.rect(x - 0.5, y + 6, 1.0, 22, f"f{number % len(svg.SERIES)}", note=f"{value:.6g}"))
    bottom = top + 44 * len(wanted)
    for part in range(5):
        x = left + (right - left) * part / 4
        parts.append(svg.text(x, bottom + 6, f"{high * part / 4:g}", "soft", anchor="middle"))
    return svg.document(WIDTH, bottom + LINE, title, parts)


def density(formats: Sequence[str | NumberFormat], low: int, high: int, title: str) -> str:
    """The relative distance of neighbours, (next(x) - x) / x, over the magnitude, for each format, as SVG; both axes are powers of two.

    >>> density(["float16", "bfloat16"], -20, 20, "Relative distance of numbers")[:4]
    '<svg'
    """
    wanted = [number_format(one) for one in formats]
    left, right, top, bottom = 64.0, WIDTH - MARGIN, MARGIN + 3.4 * LINE, 300.0
    axis, least, most = _Exponents(low, high, left, right), -26.0, 2.0
    parts = [svg.text(MARGIN, MARGIN + 12, title, "title"), *axis.ticks(top, bottom)]

    def y(exponent: float) -> float:
        return bottom - (min(max(exponent, least), most) - least) / (most - least) * (bottom - top)

    for exponent in range(-24, 1, 4):
        parts.append(svg.line(left, y(exponent), right, y(exponent), "grid"))
        parts.append(svg.text(left - 8, y(exponent) + 4, power(exponent), "soft", anchor="end"))
    x = float(MARGIN)
    for number, one in enumerate(wanted):
        points = [
            (axis.x(e), y(d)) for e in np.linspace(low, high, 1601) if (d := _relative_step(one, float(e))) is not None
        ]
        if points:
            parts.append(svg.path(points, number))
        parts.append(svg.rect(x, MARGIN + 1.6 * LINE - 9, 10, 10, f"f{number % len(svg.SERIES)}"))
        parts.append(svg.text(x + 15, MARGIN + 1.6 * LINE, one.name))
        x += 15 + svg.text_width(one.name) + 16
    parts.append(svg.text((left + right) / 2, bottom + 2 * LINE, "magnitude |x|", "soft", anchor="middle"))
    return svg.document(WIDTH, bottom + 2.6 * LINE, title, parts)


def _relative_step(format: NumberFormat, exponent: float) -> float | None:
    """log2 of the distance of neighbours at 2^exponent, relative to it; None beyond the range."""
    value = 2.0**exponent
    if value > format.largest or value < format.step:
        return None
    if isinstance(format, FixedFormat):
        return -format.fraction - exponent
    return max(math.floor(exponent), format.least_exponent) - format.fraction_bits - exponent


def radix_point(code: int, formats: Sequence[str | FixedFormat], title: str) -> str:
    """The same bits read with different radix points, as SVG: a row of bits with their weights for each format.

    >>> radix_point(0b01011010, ["q7.0", "q3.4"], "One byte, two radix points")[:4]
    '<svg'
    """
    wanted = [one for one in map(number_format, formats) if isinstance(one, FixedFormat)]
    cell, left, top = 46.0, MARGIN + 62.0, MARGIN + 2.4 * LINE
    parts = [svg.text(MARGIN, MARGIN + 12, title, "title")]
    widest = max(one.bits for one in wanted)
    for number, one in enumerate(wanted):
        y, total = top + number * 74, _signed_value(code, one)
        parts.append(svg.text(left - 12, y + 22, one.name.upper(), "strong", anchor="end"))
        for place in range(one.bits):
            weight = one.bits - 1 - place
            bit, x = (code >> weight) & 1, left + place * cell
            kind = f"f{number % len(svg.SERIES)}"
            parts.append(
                svg.rect(x + 1, y, cell - 2, 32, kind if bit else "tile", opacity=0.85 if bit else 1, corner=3)
            )
            parts.append(svg.text(x + cell / 2, y + 21, str(bit), "over strong" if bit else "strong", anchor="middle"))
            sign = "-" if one.signed and place == 0 else ""
            parts.append(
                svg.text(
                    x + cell / 2, y + 46, f"{sign}{power(weight - one.fraction)}", "soft", anchor="middle", size=11
                )
            )
        point = left + (one.bits - one.fraction) * cell
        for kind, radius in (("paper", 7.0), ("f5", 5.0)):
            parts.append(f'<circle cx="{point:.1f}" cy="{y + 32:.1f}" r="{radius:g}" class="{kind}"/>')
        parts.append(svg.text(left + widest * cell + 14, y + 21, f"= {total * one.step:g}", "strong"))
    height = top + 74 * len(wanted)
    return svg.document(left + widest * cell + 110, height, title, parts)


def _signed_value(code: int, format: FixedFormat) -> int:
    return code - (1 << format.bits) if format.signed and code >> (format.bits - 1) else code
