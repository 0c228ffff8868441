"""A scatter plot of a map, coloured by class, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..report import svg

SIDE, MARGIN, LEGEND = 560.0, 16.0, 20
RADIUS = 2.6


def scatter(
    points: np.ndarray, labels: np.ndarray | None, classes: Sequence[str], title: str, wrong: np.ndarray | None = None
) -> str:
    """Points (n, 2) in the colours of their classes; those that are `wrong` have a ring.

    >>> scatter(np.zeros((2, 2)), np.array([0, 1]), ["cat", "dog"], "Map")[:4]
    '<svg'
    """
    span = points.max(axis=0) - points.min(axis=0)
    places = (points - points.min(axis=0)) / max(float(span.max()), 1e-12) * (SIDE - 2 * RADIUS) + RADIUS
    top = MARGIN + 32
    parts = [svg.text(MARGIN, MARGIN + 13, title, "title")]
    for i, (x, y) in enumerate(places):
        label = 0 if labels is None else int(labels[i])
        ring = ' stroke="currentColor" stroke-width="1.6"' if wrong is not None and wrong[i] else ""
        name = f"<title>{svg.escape(classes[label])}</title>" if labels is not None and classes else ""
        parts.append(_mark(label, MARGIN + x, top + SIDE - y, ring, name))
    for i, one in enumerate(classes[:LEGEND]):
        y = top + 8 + 20 * i
        parts.append(_mark(i, MARGIN + SIDE + 26, y - 4.5, "", "", 2.0))
        parts.append(svg.text(MARGIN + SIDE + 38, y, svg.fit(one, 120)))
    if wrong is not None and wrong.any():
        parts.append(svg.text(MARGIN, top + SIDE + 18, f"Rings: {int(wrong.sum()):,} wrong predictions", "soft"))
    return svg.document(2 * MARGIN + SIDE + 170, top + SIDE + 32, title, parts)


def _mark(label: int, x: float, y: float, ring: str, name: str, scale: float = 1.0) -> str:
    """A circle in the colour of a class; where colours repeat, a square or a diamond."""
    again, colour = divmod(label, len(svg.SERIES))
    r = RADIUS * scale
    if again == 0:
        return f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{r}" fill-opacity=".8"{ring}>{name}</circle>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if again % 2 == 0 else ""
    box = f'x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:.1f}" height="{2 * r:.1f}"'
    return f'<rect class="f{colour}" {box} fill-opacity=".8"{turn}{ring}>{name}</rect>'
