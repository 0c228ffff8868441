"""Draws confusion matrices as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from . import svg
from .axes import short
from .png import data_url, png

SIDE, MAX_CELL = 520, 72  # pixels of the whole matrix and, at most, of one cell
MARGIN, LINE = 16, 18
MIN_WIDTH = 420
MAX_CELLS = 40  # with more classes the matrix is drawn as one image, a pixel per cell
MAX_PIXELS = 260  # with more classes, adjacent classes share a pixel
RIGHT, WRONG = (0, 114, 178), (213, 94, 0)


def confusion(matrix: Any, classes: Sequence[str], title: str = "Confusion matrix") -> str:
    """Draw counts with true classes as rows and predicted classes as columns; the colour is the fraction of the row.

    >>> confusion([[9, 1], [2, 8]], ["cat", "dog"])[:4]
    '<svg'
    """
    counts = check_counts(matrix, classes)
    grid = _Grid(counts, classes)
    parts = [
        svg.text(MARGIN, MARGIN + 13, svg.fit(title, grid.width - 2 * MARGIN, 16), "title"),
        *_legend_key(MARGIN + 33, _classes_per_cell(len(counts))),
    ]
    if not len(counts):
        parts.append(svg.text(MARGIN, grid.top + LINE, "no data", "soft"))
        return svg.document(grid.width, grid.top + 2 * LINE + MARGIN, title, parts)
    parts += grid.cells() if len(counts) <= MAX_CELLS else [grid.picture()]
    return svg.document(grid.width, grid.bottom + grid.foot, title, [*parts, *grid.names()])


def check_counts(matrix: Any, classes: Sequence[str]) -> np.ndarray:
    """Check the counts and return them as an array."""
    try:
        counts = np.asarray(matrix, np.float64)
    except (TypeError, ValueError):
        raise UserError("confusion", "the matrix must hold numbers.") from None
    counts = counts.reshape(0, 0) if counts.size == 0 else counts
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise UserError("confusion", f"the matrix must be square, got shape {counts.shape}.")
    if len(classes) != len(counts):
        raise UserError(
            "confusion", f"there must be a name for each class, got {len(classes)} names for {len(counts)} classes."
        )
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise UserError("confusion", "the matrix must hold counts that are finite and not negative.")
    return counts


def row_fractions(counts: np.ndarray) -> np.ndarray:
    """Each count as a fraction of its row; empty rows are zero."""
    rows = np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    return np.asarray(counts / rows)


def pool_counts(counts: np.ndarray) -> np.ndarray:
    """Sum the counts of adjacent classes, if there are too many classes to draw each."""
    starts = np.arange(0, len(counts), _classes_per_cell(len(counts)))
    return np.asarray(np.add.reduceat(np.add.reduceat(counts, starts, axis=0), starts, axis=1))


def _classes_per_cell(classes: int) -> int:
    return max(1, math.ceil(classes / MAX_PIXELS))


def _legend_key(y: float, together: int) -> list[str]:
    parts, x = [], float(MARGIN)
    for kind, words in (("f0", "correct"), ("f1", "wrong")):
        parts += [svg.rect(x, y - 10, 12, 12, kind, corner=2), svg.text(x + 18, y, words)]
        x += 18 + svg.text_width(words) + 18
    neighbours = f"; {together} adjacent classes per cell" if together > 1 else ""
    return [*parts, svg.text(x, y, "colour: fraction of the true class" + neighbours, "soft")]


class _Grid:
    """The layout: cells and class names."""

    def __init__(self, counts: np.ndarray, classes: Sequence[str]) -> None:
        self.counts, self.classes, self.share = counts, classes, row_fractions(counts)
        self.cell = min(MAX_CELL, SIDE / max(1, len(classes)))
        self.size = self.cell * len(classes)
        widest = max((svg.text_width(svg.fit(name, 110)) for name in classes), default=0)
        self.left = MARGIN + LINE + widest + 8
        self.top = MARGIN + 33 + 16.0
        self.bottom = self.top + self.size
        self.upright = widest + 6 > self.cell
        self.foot = (widest if self.upright else 12) + 10 + LINE + MARGIN
        self.width = round(max(MIN_WIDTH, self.left + self.size + MARGIN))

    def cells(self) -> list[str]:
        """A box per count, with the number if it fits."""
        parts = []
        n = len(self.classes)
        for row, column in ((r, c) for r in range(n) for c in range(n)):
            x, y, right = self.left + column * self.cell, self.top + row * self.cell, row == column
            parts.append(svg.rect(x + 0.5, y + 0.5, self.cell - 1, self.cell - 1, "tile"))
            if self.counts[row, column]:
                parts += self._count(row, column, x, y, "f0" if right else "f1")
        return parts

    def _count(self, row: int, column: int, x: float, y: float, kind: str) -> list[str]:
        count, share = float(self.counts[row, column]), float(self.share[row, column])
        note = f"{self.classes[row]} predicted as {self.classes[column]}: {count:,.15g} ({share:.1%})"
        opacity = _strength(share)
        box = svg.rect(x + 0.5, y + 0.5, self.cell - 1, self.cell - 1, kind, note=note, opacity=opacity)
        words = f"{count:.0f}" if count == int(count) and count < 1e4 else short(count)
        size = 12 if self.cell >= 30 else 10
        if svg.text_width(words, size) > self.cell - 3 or self.cell < 16:
            return [box]
        place = (x + self.cell / 2, y + self.cell / 2 + 4)
        return [box, svg.text(*place, words, "over" if opacity > 0.6 else "", anchor="middle", note=note, size=size)]

    def picture(self) -> str:
        """All cells as one image, transparent where the count is 0, so that it fits light and dark mode."""
        share = row_fractions(pool_counts(self.counts))
        n = len(share)
        pixels = np.empty((n, n, 4), np.uint8)
        pixels[..., :3] = np.where(np.eye(n, dtype=bool)[..., None], RIGHT, WRONG)
        pixels[..., 3] = np.rint(255 * np.where(share > 0, 0.1 + 0.9 * np.sqrt(share), 0))
        frame = svg.rect(self.left, self.top, self.size, self.size, "tile")
        return frame + svg.image(self.left, self.top, self.size, self.size, data_url(png(pixels)))

    def names(self) -> list[str]:
        """The class names of rows and columns; every second (third, ...) one if there is not enough space."""
        stride = max(1, int(np.ceil(14 / self.cell)))
        parts = []
        for index in range(0, len(self.classes), stride):
            words, middle = svg.fit(self.classes[index], 110), (index + 0.5) * self.cell
            note = self.classes[index] if words != self.classes[index] else ""
            parts.append(svg.text(self.left - 8, self.top + middle + 4, words, anchor="end", note=note))
            x = self.left + middle
            if self.upright:
                parts.append(svg.text(x + 4, self.bottom + 8, words, anchor="end", note=note, upright=True))
            else:
                parts.append(svg.text(x, self.bottom + 16, words, anchor="middle", note=note))
        across = svg.text(
            self.left + self.size / 2, self.bottom + self.foot - MARGIN + 4, "predicted", "soft", anchor="middle"
        )
        down = svg.text(MARGIN + 10, self.top + self.size / 2, "true", "soft", anchor="middle", upright=True)
        return [*parts, across, down]


def _strength(share: float) -> float:
    """The opacity of a fraction; it grows steeply at first, so that rare mistakes are visible."""
    return 0.12 + 0.88 * math.pow(share, 0.7)
