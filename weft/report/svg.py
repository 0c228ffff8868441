"""SVG elements of charts: text, lines and boxes, in colours for light and dark mode."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable
from itertools import accumulate

# A palette that is safe for all types of colour blindness (after Okabe and Ito), for light and dark mode.
SERIES = (
    ("#0072b2", "#56b4e9"), ("#d55e00", "#ff8f4a"), ("#009e73", "#35c99c"), ("#aa4499", "#e29bd0"), ("#b8860b", "#f0c040"), ("#5b6470", "#b4bcc8"),
)  # fmt: skip
DASHES = ("", "7 4", "2 3", "9 3 2 3")  # colours repeat with another dash pattern
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1f2630",
    "soft": "#667080",
    "grid": "#e6e9ee",
    "axis": "#aab2be",
    "cell": "#f1f3f6",
}
DARK = {
    "paper": "#171b21",
    "ink": "#e8ebf0",
    "soft": "#9aa4b2",
    "grid": "#2b323c",
    "axis": "#5a6472",
    "cell": "#20262e",
}
FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif'
# Characters that XML forbids, and Unicode direction overrides.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")


def document(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """A complete SVG, usable as a file or inside a page."""
    head = f'xmlns="http://www.w3.org/2000/svg" class="weft" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    paper = rect(0, 0, width, height, "paper")
    return (
        f'<svg {head} role="img" aria-label="{escape(label)}"><style>{STYLE}</style>\n{paper}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def escape(text: str) -> str:
    """Escape text for use in an element or an attribute.

    >>> escape("<script>")
    '&lt;script&gt;'
    """
    return html.escape(_FORBIDDEN.sub("\ufffd", text))


def text(
    x: float,
    y: float,
    words: str,
    kind: str = "",
    *,
    anchor: str = "start",
    note: str = "",
    upright: bool = False,
    size: float = 0,
) -> str:
    """A line of text at its baseline; `note` is a tooltip; `upright` text runs from bottom to top."""
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
    classes = f' class="{kind}"' if kind else ""
    font = f' style="font-size:{size:g}px"' if size else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{classes}{font}{turned}>{_note(note)}{escape(words)}</text>'


def rect(
    x: float, y: float, width: float, height: float, kind: str, *, note: str = "", opacity: float = 1, corner: float = 0
) -> str:
    """A filled box."""
    faint = f' fill-opacity="{opacity:.3f}"' if opacity < 1 else ""
    round_ = f' rx="{corner:g}"' if corner else ""
    box = f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" class="{kind}"{faint}{round_}'
    return f"{box}>{_note(note)}</rect>" if note else box + "/>"


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def path(points: Iterable[tuple[float, float]], series: int, *, pale: bool = False) -> str:
    """A polyline in the colour of a series; `pale` for one behind another."""
    places = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{places}" class="{series_kind(series)}{" pale" if pale else ""}"/>'


def dot(x: float, y: float, series: int, radius: float = 2.5, note: str = "") -> str:
    """A dot in the colour of a series."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="f{series % len(SERIES)}">{_note(note)}</circle>'


def image(x: float, y: float, width: float, height: float, link: str, *, sharp: bool = True) -> str:
    """An image; `sharp` disables smoothing when it is enlarged."""
    look = ' style="image-rendering:pixelated"' if sharp else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<image {place} preserveAspectRatio="none"{look} href="{link}"/>'


def series_kind(series: int) -> str:
    """The CSS classes of a series: its colour, and a dash pattern once the colours repeat."""
    dashes = series // len(SERIES) % len(DASHES)
    return f"s{series % len(SERIES)}" + (f" d{dashes}" if dashes else "")


def text_width(words: str, size: float = 12) -> float:
    """An estimate of the width of a text; fonts differ, so it errs on the large side."""
    return size * sum(_em(sign) for sign in words)


def fit(words: str, width: float, size: float = 12, *, middle: bool = False) -> str:
    """Shorten a text to a width with an ellipsis at the end or in the `middle`.

    >>> fit("golden retriever", 60)
    'golden…'
    """
    words = " ".join(words.split())
    if text_width(words, size) <= width:
        return words
    available = width - text_width("…", size)
    tail = words[len(words) - _fitting_length(words[::-1], available / 2, size) :] if middle else ""
    return words[: _fitting_length(words, available - text_width(tail, size), size)].rstrip() + "…" + tail


def _fitting_length(words: str, available: float, size: float) -> int:
    """The number of leading characters that fit."""
    return sum(edge <= available for edge in accumulate(size * _em(sign) for sign in words))


def _em(sign: str) -> float:
    if sign in "iljI.,:;'|! ()[]ftr-/":
        return 0.38
    if sign in "mwMW@%—…" or sign in "✓✗":
        return 0.95
    if unicodedata.combining(sign):
        return 0.0
    if unicodedata.east_asian_width(sign) in "WF" or ord(sign) > 0x1F000:
        return 1.1
    return 0.72 if sign.isupper() else 0.6


def _note(note: str) -> str:
    return f"<title>{escape(note)}</title>" if note else ""


def _colours(of: dict[str, str], shade: int) -> str:
    """The CSS rules that differ between light and dark mode."""
    series = "".join(f".weft .s{i}{{stroke:{c[shade]}}}.weft .f{i}{{fill:{c[shade]}}}" for i, c in enumerate(SERIES))
    return (
        f".weft text{{fill:{of['ink']}}}.weft .soft{{fill:{of['soft']}}}.weft .paper,.weft .over{{fill:{of['paper']}}}"
        f".weft .grid{{stroke:{of['grid']}}}.weft .axis{{stroke:{of['axis']}}}.weft .tile{{fill:{of['cell']}}}{series}"
    )


STYLE = (
    f".weft text{{font:12px {FONT};font-variant-numeric:tabular-nums}}.weft .title{{font-size:15px;font-weight:600}}"
    ".weft .strong{font-weight:600}.weft path{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}"
    ".weft .pale{stroke-width:1;opacity:.32}.weft line{stroke-width:1}.weft line.key{stroke-width:3}.weft .d1{stroke-dasharray:7 4}.weft .d2{stroke-dasharray:2 3}"
    ".weft .d3{stroke-dasharray:9 3 2 3}"
    + _colours(LIGHT, 0)
    + f"@media (prefers-color-scheme:dark){{{_colours(DARK, 1)}}}"
)
