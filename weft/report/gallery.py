"""Pictures side by side with a few words below each: samples, predictions, mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from . import svg
from .png import data_link, png

TILE, GAP, MARGIN, LINE = 104, 14, 16, 16
COLUMNS = 9
LARGEST_SIDE = 2 * TILE  # pictures are shrunk to about this before they are stored


def gallery(
    images: Any,
    captions: Sequence[str],
    title: str = "",
    *,
    right: Sequence[bool | None] | None = None,
    columns: int = COLUMNS,
) -> str:
    """Pictures of uint8 with captions of up to two lines, as SVG; `right` marks each as a hit or a mistake.

    Shapes: (n, height, width), (n, height, width, channels) or (n, channels, height, width).

    >>> gallery(np.zeros((1, 8, 8), "uint8"), ["seven"])[:4]
    '<svg'
    """
    if columns < 1:
        raise UserError("gallery", f"columns must be at least 1, got {columns}.")
    pictures = as_pictures(images)
    if len(captions) != len(pictures) or (right is not None and len(right) != len(pictures)):
        raise UserError(
            "gallery", f"there must be a caption for each picture, got {len(captions)} for {len(pictures)} pictures."
        )
    columns = max(3, min(columns, len(pictures)))
    top = MARGIN + (32.0 if title else 0.0)
    width = 2 * MARGIN + columns * TILE + (columns - 1) * GAP
    parts = [svg.text(MARGIN, MARGIN + 13, svg.fit(title, width - 2 * MARGIN, 16), "title")] if title else []
    height = TILE + GAP + LINE * min(2, max((len(caption.splitlines()) for caption in captions), default=0))
    for index, picture in enumerate(pictures):
        x, y = MARGIN + index % columns * (TILE + GAP), top + index // columns * height
        parts += [
            *_picture(picture, x, y),
            *_caption(captions[index], None if right is None else right[index], x, y + TILE),
        ]
    if not len(pictures):
        parts.append(svg.text(MARGIN, top + LINE, "no pictures", "soft"))
    rows = math.ceil(len(pictures) / columns)
    return svg.document(width, top + max(rows * height, 2 * LINE) + MARGIN - GAP / 2, title or "pictures", parts)


def as_pictures(images: Any) -> np.ndarray:
    """An array (n, height, width, channels) of uint8 from any of the shapes that are allowed."""
    array = np.asarray(images)
    if array.dtype != np.uint8 and array.size:
        raise UserError("gallery", f"pictures are uint8, got {array.dtype}. Scale them to 0 ... 255 first.")
    if array.size == 0:
        return np.zeros((0, 1, 1, 1), np.uint8)
    if array.ndim == 3:
        return array[..., None]
    if array.ndim == 4 and array.shape[3] in (1, 3, 4):
        return array
    if array.ndim == 4 and array.shape[1] in (1, 3, 4):
        return np.moveaxis(array, 1, 3)
    raise UserError(
        "gallery", f"pictures have 1, 3 or 4 channels, got shape {array.shape}. Give (n, height, width, channels)."
    )


def _picture(picture: np.ndarray, x: float, y: float) -> list[str]:
    """As large as its tile allows, in the middle of it."""
    height, width = picture.shape[:2]
    scale = TILE / max(height, width)
    wide, high = max(1.0, width * scale), max(1.0, height * scale)
    small = max(height, width) <= TILE
    link = data_link(png(_shrunk(picture)))
    tile = svg.rect(x, y, TILE, TILE, "tile", corner=3)
    return [tile, svg.image(x + (TILE - wide) / 2, y + (TILE - high) / 2, wide, high, link, sharp=small)]


def _shrunk(picture: np.ndarray) -> np.ndarray:
    """Means over squares of pixels, until the larger side is small enough; the rest at the edges is cut off."""
    height, width, channels = picture.shape
    factor = min(math.ceil(max(height, width) / LARGEST_SIDE), height, width)
    if factor < 2:
        return picture
    cut = picture[: height // factor * factor, : width // factor * factor]
    squares = cut.reshape(height // factor, factor, width // factor, factor, channels)
    return np.asarray(np.rint(squares.mean(axis=(1, 3))), np.uint8)


def _caption(caption: str, right: bool | None, x: float, y: float) -> list[str]:
    sign = "" if right is None else "✓ " if right else "✗ "
    kind = "" if right is None else "strong f0" if right else "strong f1"
    lines = [*caption.splitlines()[:2], "", ""][:2]
    first = svg.text(x, y + LINE, svg.fit(sign + lines[0], TILE, 12.5), kind, note=caption)
    return [first, svg.text(x, y + 2 * LINE, svg.fit(lines[1], TILE), "soft", note=caption)] if lines[1] else [first]
