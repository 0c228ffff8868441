"""A grid of images with captions: samples, predictions, mistakes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import UserError
from . import svg
from .png import data_url, png

TILE, GAP, MARGIN, LINE = 104, 14, 16, 16
COLUMNS = 9
MAX_SIDE = 2 * TILE  # larger images are downsampled to about this size


def gallery(
    images: Any,
    captions: Sequence[str],
    title: str = "",
    *,
    right: Sequence[bool | None] | None = None,
    columns: int = COLUMNS,
) -> str:
    """A grid of uint8 images with captions of up to two lines, as SVG; `right` marks each as correct or wrong.

    Shapes: (n, height, width), (n, height, width, channels) or (n, channels, height, width).

    >>> gallery(np.zeros((1, 8, 8), "uint8"), ["seven"])[:4]
    '<svg'
    """
    if columns < 1:
        raise UserError("gallery", f"columns must be at least 1, got {columns}.")
    shown = as_images(images)
    if len(captions) != len(shown) or (right is not None and len(right) != len(shown)):
        raise UserError(
            "gallery", f"there must be a caption for each image, got {len(captions)} for {len(shown)} images."
        )
    columns = max(3, min(columns, len(shown)))
    top = MARGIN + (32.0 if title else 0.0)
    width = 2 * MARGIN + columns * TILE + (columns - 1) * GAP
    parts = [svg.text(MARGIN, MARGIN + 13, svg.fit(title, width - 2 * MARGIN, 16), "title")] if title else []
    height = TILE + GAP + LINE * min(2, max((len(caption.splitlines()) for caption in captions), default=0))
    for index, image in enumerate(shown):
        x, y = MARGIN + index % columns * (TILE + GAP), top + index // columns * height
        parts += [
            *_image_element(image, x, y),
            *_caption(captions[index], None if right is None else right[index], x, y + TILE),
        ]
    if not len(shown):
        parts.append(svg.text(MARGIN, top + LINE, "no images", "soft"))
    rows = math.ceil(len(shown) / columns)
    return svg.document(width, top + max(rows * height, 2 * LINE) + MARGIN - GAP / 2, title or "images", parts)


def as_images(images: Any) -> np.ndarray:
    """Convert any of the accepted shapes to (n, height, width, channels)."""
    array = np.asarray(images)
    if array.dtype != np.uint8 and array.size:
        raise UserError("gallery", f"images must be uint8, got {array.dtype}. Scale them to 0 ... 255 first.")
    if array.size == 0:
        return np.zeros((0, 1, 1, 1), np.uint8)
    if array.ndim == 3:
        return array[..., None]
    if array.ndim == 4 and array.shape[3] in (1, 3, 4):
        return array
    if array.ndim == 4 and array.shape[1] in (1, 3, 4):
        return np.moveaxis(array, 1, 3)
    raise UserError(
        "gallery", f"images must have 1, 3 or 4 channels, got shape {array.shape}. Pass (n, height, width, channels)."
    )


def _image_element(image: np.ndarray, x: float, y: float) -> list[str]:
    """The image scaled to its tile, and centred in it."""
    height, width = image.shape[:2]
    scale = TILE / max(height, width)
    wide, high = max(1.0, width * scale), max(1.0, height * scale)
    small = max(height, width) <= TILE
    link = data_url(png(_shrink(image)))
    tile = svg.rect(x, y, TILE, TILE, "tile", corner=3)
    return [tile, svg.image(x + (TILE - wide) / 2, y + (TILE - high) / 2, wide, high, link, sharp=small)]


def _shrink(image: np.ndarray) -> np.ndarray:
    """Downsample by averaging squares of pixels; a remainder at the edges is dropped."""
    height, width, channels = image.shape
    factor = min(math.ceil(max(height, width) / MAX_SIDE), height, width)
    if factor < 2:
        return image
    cut = image[: height // factor * factor, : width // factor * factor]
    squares = cut.reshape(height // factor, factor, width // factor, factor, channels)
    return np.asarray(np.rint(squares.mean(axis=(1, 3))), np.uint8)


def _caption(caption: str, right: bool | None, x: float, y: float) -> list[str]:
    sign = "" if right is None else "✓ " if right else "✗ "
    kind = "" if right is None else "strong f0" if right else "strong f1"
    lines = [*caption.splitlines()[:2], "", ""][:2]
    first = svg.text(x, y + LINE, svg.fit(sign + lines[0], TILE, 12.5), kind, note=caption)
    return [first, svg.text(x, y + 2 * LINE, svg.fit(lines[1], TILE), "soft", note=caption)] if lines[1] else [first]
