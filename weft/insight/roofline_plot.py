"""A roofline plot: each layer a dot at its arithmetic intensity and its rate, below the roof of the machine, both axes logarithmic.

Several profiles share a picture: two devices, or a network before and after compression. Each has its own roof and colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from ..runtime.facts import Roofline
from .layer_profile import LayerProfile
from .profile import ProgramProfile
from .profile_text import amount, duration

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 18, 46
COLOURS = ("#3b6fd4", "#d9622b", "#2e9e6b", "#8d5bd0")
SMALLEST, LARGEST = 4.0, 15.0  # radii of dots
SHOWN = 0.002  # of the time: layers with less are left out
NAMED = 6  # layers of each profile that have a name in the picture


def roofline_svg(profiles: Mapping[str, ProgramProfile]) -> str:
    """The picture of profiles by name, as SVG with light and dark colours."""
    series = [(name, found, _dots(found)) for name, found in profiles.items()]
    scale = _Scale(
        [dot for _, _, dots in series for dot in dots], [found.explanation.roof for found in profiles.values()]
    )
    parts = [*_grid(scale)]
    for number, (name, found, dots) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        parts += _roof(scale, found.explanation.roof, colour, name, number)
        parts += _marks(scale, dots, found, colour, name)
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


def _dots(found: ProgramProfile) -> list[LayerProfile]:
    total = found.total.seconds
    return [one for one in found.by_layer if one.flops and one.nbytes and one.seconds >= SHOWN * total]


class _Scale:
    """Both axes: powers of ten around all dots and the corners of the roofs."""

    def __init__(self, dots: Sequence[LayerProfile], roofs: Sequence[Roofline]) -> None:
        corners = [_peak(roof) / roof.bandwidth for roof in roofs]
        xs = [*(one.intensity for one in dots), *(c for c in corners if math.isfinite(c))] or [1.0]
        ys = [
            *(one.flops / one.seconds for one in dots),
            *(_peak(roof) for roof in roofs if math.isfinite(_peak(roof))),
        ] or [1.0]
        self.x0, self.x1 = math.floor(math.log10(min(xs) / 1.3)), math.ceil(math.log10(max(xs) * 3))
        self.y0, self.y1 = math.floor(math.log10(min(ys) / 1.3)), math.ceil(math.log10(max(ys) * 1.3))

    def x(self, intensity: float) -> float:
        return LEFT + (math.log10(intensity) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(rate) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def _peak(roof: Roofline) -> float:
    """Operations a second in float32, read from what the roof answers for work without bytes."""
    seconds = roof.seconds(1e12, 0.0)
    return 1e12 / seconds if seconds else math.inf


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


def _roof(scale: _Scale, roof: Roofline, colour: str, name: str, number: int) -> Iterator[str]:
    peak = _peak(roof)
    if not math.isfinite(peak):
        return
    low, high = 10.0**scale.x0, 10.0**scale.x1
    start = max(low, 10.0**scale.y0 / roof.bandwidth)
    points = [(start, start * roof.bandwidth), (peak / roof.bandwidth, peak), (high, peak)]
    line = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points if low <= x <= high)
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    label = f"{escape(name)}: {amount(peak)}FLOP/s, {amount(roof.bandwidth)}B/s"
    yield f'<text x="{WIDTH - RIGHT - 4}" y="{scale.y(peak) - 6:.1f}" text-anchor="end" class="halo" style="fill:{colour}">{label}</text>'


def _marks(scale: _Scale, dots: Sequence[LayerProfile], found: ProgramProfile, colour: str, name: str) -> Iterator[str]:
    most = max((one.seconds for one in dots), default=1.0)
    placed: list[tuple[float, float]] = []
    for one in sorted(dots, key=lambda one: -one.seconds):
        rate = one.flops / one.seconds
        radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(one.seconds / most)
        x, y = scale.x(one.intensity), scale.y(rate)
        title = (
            f"{one.label} {one.kind}: {duration(one.seconds)} ({one.seconds / found.total.seconds:.1%}), {amount(rate)}FLOP/s, "
            f"{one.intensity:.1f} FLOP/B, {one.roof:.0%} of the roof"
        )
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}" fill-opacity=".55" stroke="{colour}" '
            f'data-layer="{escape(one.label)}" data-series="{escape(name)}"><title>{escape(title)}</title></circle>'
        )
        free = all(abs(x - px) > 90 or abs(y - py) > 14 for px, py in placed)
        if len(placed) < NAMED and free:
            placed.append((x, y))
            side = ("end", -radius - 4) if x > WIDTH - 160 else ("start", radius + 4)
            yield f'<text class="halo" x="{x + side[1]:.1f}" y="{y + 4:.1f}" text-anchor="{side[0]}">{escape(one.label)}</text>'
