"""A roofline plot: each layer is a dot at its arithmetic intensity and its rate, below the machine's roof, both axes logarithmic.

Several profiles share a plot: two devices, or a network before and after compression. Each has its own roof and colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from ..records import dataclass
from .profile import ProgramProfile
from .profile_record import LayerRecord, ProfileRecord, as_record
from .profile_text import amount, duration
from .roof_lines import RoofLines

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 18, 46
COLOURS = ("#3b6fd4", "#d9622b", "#2e9e6b", "#8d5bd0")
SMALLEST, LARGEST = 4.0, 15.0  # radii of dots
SHOWN = 0.002  # fraction of the time: cheaper layers are left out
LETTER, LINE = 6.6, 15.0  # width of a letter and height of a line
NAMED = 6  # labelled layers of each profile
SLOPE_PLACES = (0.3, 0.15, 0.45, 0.6, 0.75)  # positions along the slope for the bandwidth label
CROWDED = 45.0  # a dot that is nearer than this obstructs a label

_Place = tuple[float, float, float]  # of a dot: x, y and radius


def roofline_svg(profiles: Mapping[str, ProgramProfile | ProfileRecord]) -> str:
    """The plot of profiles by name, as SVG with light and dark colours."""
    records = {name: as_record(found, name) for name, found in profiles.items()}
    dots = {name: _dots(found) for name, found in records.items()}
    scale = _RooflineScale([dot for own in dots.values() for dot in own], [found.roof for found in records.values()])
    places = [_place(scale, dot, own) for own in dots.values() for dot in own]
    placed = [_LabelBox(LEFT, LEFT + 26 + LETTER * len(name), _key_y(i)) for i, name in enumerate(records)]
    lines = [*_grid(scale)]
    marks: list[str] = []
    names: list[str] = []  # drawn above all dots
    drawn: list[tuple[str, RoofLines]] = []
    for number, (name, found) in enumerate(records.items()):
        colour = COLOURS[number % len(COLOURS)]
        if not any(where == found.where and _are_close(found.roof, roof) for where, roof in drawn):
            lines += _roof(scale, found.roof, colour)
            names += _roof_labels(scale, found.roof, colour, found.where, places, placed)
            drawn.append((found.where, found.roof))
        marks += _marks(scale, dots[name], found, colour, name)
        names.append(_key(number, name, colour))
    for name in records:
        names += _names(scale, dots[name], places, placed)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Roofline plot" class="roofline">'
        f"<style>{_STYLE}</style>{''.join([*lines, *marks, *names])}</svg>"
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


class _RooflineScale:
    """Both axes: powers of ten around all dots and the corners of the roofs."""

    def __init__(self, dots: Sequence[LayerRecord], roofs: Sequence[RoofLines]) -> None:
        corners = [roof.peak / roof.bandwidth for roof in roofs if roof.peak and roof.bandwidth]
        xs = [*(one.intensity for one in dots), *corners] or [1.0]
        ys = [*(one.rate for one in dots), *(peak for roof in roofs for peak in roof.peaks.values())] or [1.0]
        self.x0, self.x1 = (
            math.floor(math.log10(min(xs) / 1.3)),
            math.ceil(math.log10(max(xs) * 10)),
        )  # space for names at the right
        self.y0, self.y1 = math.floor(math.log10(min(ys) / 1.3)), math.ceil(math.log10(max(ys) * 1.3))

    def x(self, intensity: float) -> float:
        return LEFT + (math.log10(intensity) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(rate) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def _power(power: int) -> str:
    """A power of ten with its prefix.

    >>> _power(10), _power(15), _power(0)
    ('10 G', '1 P', '1')
    """
    return amount(10.0**power).replace(".00", "").replace(".0", "").strip()


def _grid(scale: _RooflineScale) -> Iterator[str]:
    for power in range(scale.x0, scale.x1 + 1):
        x = scale.x(10.0**power)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_power(power) if power > 3 else f"{10.0**power:g}"}</text>'
    for power in range(scale.y0, scale.y1 + 1):
        y = scale.y(10.0**power)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_power(power)}</text>'
    middle = (LEFT + WIDTH - RIGHT) / 2
    yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">FLOP for each byte moved</text>'
    yield f'<text transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">FLOP/s</text>'


def _roof(scale: _RooflineScale, roof: RoofLines, colour: str) -> Iterator[str]:
    """The slope, and a flat line for each number width, the widest solid."""
    if not roof.peak or not roof.bandwidth:
        return
    low, high = 10.0**scale.x0, 10.0**scale.x1
    for number, peak in enumerate(roof.peaks.values()):
        corner = peak / roof.bandwidth
        before = _slope_begin(scale, roof.bandwidth) if number == 0 else roof.peak / roof.bandwidth
        points = [(before, before * roof.bandwidth), (corner, peak), (high, peak)]
        line = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points if low <= x <= high)
        look = ' stroke-width="1.6"' if number == 0 else ' stroke-width="1.2" stroke-dasharray="5 4" opacity=".7"'
        yield f'<polyline points="{line}" fill="none" stroke="{colour}"{look}/>'


def _slope_begin(scale: _RooflineScale, bandwidth: float) -> float:
    return float(max(10.0**scale.x0, 10.0**scale.y0 / bandwidth))


def _roof_labels(
    scale: _RooflineScale, roof: RoofLines, colour: str, name: str, places: Sequence[_Place], placed: list[_LabelBox]
) -> Iterator[str]:
    """The peaks at the right end of their lines, and the bandwidth along the slope."""
    if not roof.peak or not roof.bandwidth:
        return
    for number, (width, peak) in enumerate(roof.peaks.items()):
        label = f"{name}, {amount(peak)}FLOP/s" if number == 0 else f"{amount(peak)}FLOP/s in {width}"
        right = WIDTH - RIGHT - 4
        above, below = (_LabelBox(right - LETTER * len(label), right, scale.y(peak) + way) for way in (-8, 15))
        box = below if any(above.overlaps(other) for other in placed) else above
        placed.append(box)
        yield f'<text x="{right}" y="{box.y + 2:.1f}" text-anchor="end" class="halo" style="fill:{colour}">{escape(label)}</text>'
    yield from _slope_label(scale, roof, colour, places, placed)


def _are_close(one: RoofLines, other: RoofLines) -> bool:
    """Whether two roofs are measurements of the same machine."""
    return bool(one.peak and other.peak and abs(math.log(one.peak / other.peak)) < 0.1)


def _key_y(number: int) -> float:
    return TOP + 14.0 + 18 * number


def _key(number: int, name: str, colour: str) -> str:
    y = _key_y(number)
    return f'<circle cx="{LEFT + 14}" cy="{y - 4}" r="5" fill="{colour}" fill-opacity=".4" stroke="{colour}"/><text class="halo" x="{LEFT + 26}" y="{y}">{escape(name)}</text>'


def _slope_label(
    scale: _RooflineScale, roof: RoofLines, colour: str, places: Sequence[_Place], placed: list[_LabelBox]
) -> Iterator[str]:
    """The bandwidth, written along the slope where there are fewest dots."""
    assert roof.peak is not None
    assert roof.bandwidth is not None
    start = _slope_begin(scale, roof.bandwidth)
    x0, y0 = scale.x(start), scale.y(start * roof.bandwidth)
    x1, y1 = scale.x(roof.peak / roof.bandwidth), scale.y(roof.peak)
    if x1 - x0 < 80:  # no room
        return
    label = f"{amount(roof.bandwidth)}B/s"
    middles = [(x0 + at * (x1 - x0), y0 + at * (y1 - y0)) for at in SLOPE_PLACES]
    x, y = min(middles, key=lambda middle: sum(math.dist(middle, place[:2]) < CROWDED for place in places))
    placed.append(_LabelBox(x - LETTER * len(label) / 2, x + LETTER * len(label) / 2, y - 6))
    turned = f"translate({x:.1f} {y:.1f}) rotate({math.degrees(math.atan2(y1 - y0, x1 - x0)):.1f}) translate(0 -6)"
    yield f'<text transform="{turned}" text-anchor="middle" class="halo" style="fill:{colour}">{label}</text>'


@dataclass(frozen=True)
class _LabelBox:
    """The position of a label in the plot."""

    left: float
    right: float
    y: float

    def overlaps(self, other: _LabelBox) -> bool:
        return self.left < other.right and other.left < self.right and abs(self.y - other.y) < LINE

    def covers(self, place: _Place) -> bool:
        """Whether the text hides part of a dot."""
        x, y, radius = place
        aside, above = max(self.left - x, 0.0, x - self.right), max(abs(self.y - y) - LETTER, 0.0)
        return math.hypot(aside, above) < radius


def _label_boxes(label: str, x: float, y: float, radius: float) -> Iterator[_LabelBox]:
    """Right of a dot, left of it, above and below, where that is inside the plot."""
    width = LETTER * len(label)
    for left, middle in (
        (x + radius + 4, y),
        (x - radius - 4 - width, y),
        (x - width / 2, y - radius - 9),
        (x - width / 2, y + radius + 9),
    ):
        if left > LEFT and left + width < WIDTH - RIGHT and TOP < middle < HEIGHT - BOTTOM:
            yield _LabelBox(left, left + width, middle)


def _place(scale: _RooflineScale, one: LayerRecord, dots: Sequence[LayerRecord]) -> _Place:
    radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(one.seconds / max(dot.seconds for dot in dots))
    return scale.x(one.intensity), scale.y(one.rate), radius


def _marks(
    scale: _RooflineScale, dots: Sequence[LayerRecord], found: ProfileRecord, colour: str, name: str
) -> Iterator[str]:
    for one in sorted(dots, key=lambda one: -one.seconds):
        title = (
            f"{one.label} {one.kind}: {duration(one.seconds)} ({one.seconds / found.layer_seconds:.1%}), {amount(one.rate)}FLOP/s, "
            f"{one.intensity:.1f} FLOP/B, {one.roof:.0%} of the roof"
        )
        x, y, radius = _place(scale, one, dots)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity=".4" '
            f'stroke="{colour}" stroke-opacity=".7" data-layer="{escape(one.label)}" data-series="{escape(name)}"><title>{escape(title)}</title></circle>'
        )


def _names(
    scale: _RooflineScale, dots: Sequence[LayerRecord], places: Sequence[_Place], placed: list[_LabelBox]
) -> Iterator[str]:
    """The labels of the layers that take most time, where they hide neither a dot nor another label; one label for coinciding dots."""
    named: list[_Place] = []
    for one in sorted(dots, key=lambda one: -one.seconds):
        place = _place(scale, one, dots)
        boxes = _label_boxes(one.label, *place)
        free = (box for box in boxes if not any(map(box.overlaps, placed)) and not any(map(box.covers, places)))
        box = next(free, None)
        if box is None or len(named) == NAMED or any(math.dist(place[:2], other[:2]) < LARGEST for other in named):
            continue
        named.append(place)
        placed.append(box)
        yield f'<text class="halo" x="{box.left:.1f}" y="{box.y + 4:.1f}">{escape(one.label)}</text>'
