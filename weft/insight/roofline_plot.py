"""A roofline plot: each layer a dot at its arithmetic intensity and its rate, below the roof of the machine, both axes logarithmic.

Several profiles share a picture: two devices, or a network before and after compression. Each has its own roof and colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .profile import ProgramProfile
from .profile_record import LayerRecord, ProfileRecord, as_record
from .profile_text import amount, duration
from .roof_lines import RoofLines

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 18, 46
COLOURS = ("#3b6fd4", "#d9622b", "#2e9e6b", "#8d5bd0")
SMALLEST, LARGEST = 4.0, 15.0  # radii of dots
SHOWN = 0.002  # of the time: layers with less are left out
LETTER, LINE = 6.6, 15.0  # width of a letter and height of a line
NAMED = 6  # layers of each profile that have a name in the picture


def roofline_svg(profiles: Mapping[str, ProgramProfile | ProfileRecord]) -> str:
    """The picture of profiles by name, as SVG with light and dark colours."""
    records = {name: as_record(found, name) for name, found in profiles.items()}
    series = [(name, found, _dots(found)) for name, found in records.items()]
    scale = _Scale([dot for _, _, dots in series for dot in dots], [found.roof for found in records.values()])
    parts = [*_grid(scale)]
    drawn: list[tuple[str, RoofLines]] = []
    placed = [_roof_label_box(scale, found.roof) for found in records.values() if found.roof.peak]
    for number, (name, found, dots) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        if not any(where == found.where and _are_close(found.roof, roof) for where, roof in drawn):
            parts += _roof(scale, found.roof, colour, found.where)
            drawn.append((found.where, found.roof))
        parts += [*_marks(scale, dots, found, colour, name, placed), _key(number, name, colour)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Roofline plot" class="roofline">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>"
    )


_STYLE = (
    ".roofline{font:12px system-ui,sans-serif;--ink:#2b2f36;--faint:#e3e6ea;--paper:#fff}"
    "@media(prefers-color-scheme:dark){.roofline{--ink:#c9ced6;--faint:#333942;--paper:#15181c}}"
    ":root[data-theme=dark] .roofline{--ink:#c9ced6;--faint:#333942;--paper:#15181c}"
    ":root[data-theme=light] .roofline{--ink:#2b2f36;--faint:#e3e6ea;--paper:#fff}"
    ".roofline text{fill:var(--ink)}.roofline .grid{stroke:var(--faint)}.roofline .halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px}"
)


def _dots(found: ProfileRecord) -> list[LayerRecord]:
    total = found.layer_seconds
    return [one for one in found.layers if one.flops and one.nbytes and one.seconds >= SHOWN * total]


class _Scale:
    """Both axes: powers of ten around all dots and the corners of the roofs."""

    def __init__(self, dots: Sequence[LayerRecord], roofs: Sequence[RoofLines]) -> None:
        corners = [roof.peak / roof.bandwidth for roof in roofs if roof.peak and roof.bandwidth]
        xs = [*(one.intensity for one in dots), *corners] or [1.0]
        ys = [*(one.rate for one in dots), *(peak for roof in roofs for peak in roof.peaks.values())] or [1.0]
        self.x0, self.x1 = math.floor(math.log10(min(xs) / 1.3)), math.ceil(math.log10(max(xs) * 3))
        self.y0, self.y1 = math.floor(math.log10(min(ys) / 1.3)), math.ceil(math.log10(max(ys) * 1.3))

    def x(self, intensity: float) -> float:
        return LEFT + (math.log10(intensity) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(rate) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def _grid(scale: _Scale) -> Iterator[str]:
    for power in range(scale.x0, scale.x1 + 1):
        x = scale.x(10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(scale.y0, scale.y1 + 1):
        y = scale.y(10.0**power)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{amount(10.0**power).replace(".00", "")}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">FLOP for each byte moved</text>'
    yield f'<text transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">FLOP/s</text>'


def _roof(scale: _Scale, roof: RoofLines, colour: str, name: str) -> Iterator[str]:
    """The slope with its bandwidth, and a flat line for each width of numbers, the widest solid."""
    if not roof.peak or not roof.bandwidth:
        return
    low, high = 10.0**scale.x0, 10.0**scale.x1
    start = max(low, 10.0**scale.y0 / roof.bandwidth)
    for number, (width, peak) in enumerate(roof.peaks.items()):
        corner = peak / roof.bandwidth
        before = start if number == 0 else roof.peak / roof.bandwidth
        points = [(before, before * roof.bandwidth), (corner, peak), (high, peak)]
        line = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points if low <= x <= high)
        look = ' stroke-width="1.6"' if number == 0 else ' stroke-width="1.2" stroke-dasharray="5 4" opacity=".7"'
        yield f'<polyline points="{line}" fill="none" stroke="{colour}"{look}/>'
        label = f"{escape(name)}, {amount(peak)}FLOP/s" if number == 0 else f"{amount(peak)}FLOP/s in {width}"
        yield f'<text x="{scale.x(corner) + 6:.1f}" y="{scale.y(peak) - 7:.1f}" class="halo" style="fill:{colour}">{label}</text>'
    yield from _slope_label(scale, roof, start, colour)


def _are_close(one: RoofLines, other: RoofLines) -> bool:
    """Whether two roofs are the same machine's, measured twice."""
    return bool(one.peak and other.peak and abs(math.log(one.peak / other.peak)) < 0.1)


def _key(number: int, name: str, colour: str) -> str:
    y = TOP + 14 + 18 * number
    return f'<circle cx="{LEFT + 14}" cy="{y - 4}" r="5" fill="{colour}" fill-opacity=".55" stroke="{colour}"/><text class="halo" x="{LEFT + 26}" y="{y}">{escape(name)}</text>'


def _slope_label(scale: _Scale, roof: RoofLines, start: float, colour: str) -> Iterator[str]:
    """The bandwidth, written along the slope."""
    assert roof.peak is not None
    assert roof.bandwidth is not None
    x0, y0 = scale.x(start), scale.y(start * roof.bandwidth)
    x1, y1 = scale.x(roof.peak / roof.bandwidth), scale.y(roof.peak)
    if x1 - x0 < 40:  # no room
        return
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    x, y = x0 + 0.3 * (x1 - x0), y0 + 0.3 * (y1 - y0)
    turned = f"translate({x:.1f} {y:.1f}) rotate({angle:.1f}) translate(0 -6)"
    yield f'<text transform="{turned}" text-anchor="middle" class="halo" style="fill:{colour}">{amount(roof.bandwidth)}B/s</text>'


@dataclass(frozen=True)
class _LabelBox:
    """Where a name stands in the picture."""

    left: float
    right: float
    y: float

    def overlaps(self, other: _LabelBox) -> bool:
        return self.left < other.right and other.left < self.right and abs(self.y - other.y) < LINE


def _roof_label_box(scale: _Scale, roof: RoofLines) -> _LabelBox:
    assert roof.peak is not None
    assert roof.bandwidth is not None
    left = scale.x(roof.peak / roof.bandwidth)
    return _LabelBox(left, left + 26 * LETTER, scale.y(roof.peak) - 10)


def _label_box(label: str, x: float, y: float, radius: float) -> _LabelBox:
    """Right of a dot, or left of it where there is no room."""
    width = LETTER * len(label)
    left = x + radius + 4
    if left + width > WIDTH - RIGHT:
        left = x - radius - 4 - width
    return _LabelBox(left, left + width, y)


def _marks(
    scale: _Scale,
    dots: Sequence[LayerRecord],
    found: ProfileRecord,
    colour: str,
    name: str,
    placed: list[_LabelBox],
) -> Iterator[str]:
    most = max((one.seconds for one in dots), default=1.0)
    names: list[str] = []  # above all dots
    for one in sorted(dots, key=lambda one: -one.seconds):
        rate = one.rate
        radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(one.seconds / most)
        x, y = scale.x(one.intensity), scale.y(rate)
        title = (
            f"{one.label} {one.kind}: {duration(one.seconds)} ({one.seconds / found.layer_seconds:.1%}), {amount(rate)}FLOP/s, "
            f"{one.intensity:.1f} FLOP/B, {one.roof:.0%} of the roof"
        )
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity=".55" stroke="{colour}" '
            f'data-layer="{escape(one.label)}" data-series="{escape(name)}"><title>{escape(title)}</title></circle>'
        )
        box = _label_box(one.label, x, y, radius)
        if len(names) < NAMED and not any(box.overlaps(other) for other in placed):
            placed.append(box)
            names.append(f'<text class="halo" x="{box.left:.1f}" y="{y + 4:.1f}">{escape(one.label)}</text>')
    yield from names
