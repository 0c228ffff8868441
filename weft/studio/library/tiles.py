"""Pictures of layers for pages: all channels in one PNG, of which each tile shows its part. Activations and filters are masks, which the page
fills with the colours of its theme."""

from __future__ import annotations

import numpy as np

from ...interpret.explanation import shown_size
from ...interpret.pictures import MOST_TILES, activation_tiles, as_bytes, atlas, filter_tiles, overlay, resized
from ...records import dataclass
from ...report.png import png

COLUMNS = 16
SMALLEST, LARGEST = 56, 112  # pixels of a tile


@dataclass(frozen=True)
class Tile:
    """The place of a channel in the picture, in percent as CSS understands positions."""

    channel: int
    x: float
    y: float


def tiles_of(count: int, most: int | None = None) -> list[Tile]:
    """The places of channels; as many as the picture has.

    >>> tiles_of(18)[17]
    Tile(channel=17, x=6.666666666666667, y=100.0)
    """
    shown = min(count, most or MOST_TILES, MOST_TILES)
    columns, rows = grid_of(count)
    return [
        Tile(i, 100.0 * (i % columns) / max(1, columns - 1), 100.0 * (i // columns) / max(1, rows - 1))
        for i in range(shown)
    ]


def grid_of(count: int) -> tuple[int, int]:
    """Columns and rows of the picture."""
    shown = min(count, MOST_TILES)
    columns = min(COLUMNS, shown)
    return columns, -(-shown // columns)


def activation_mask(values: np.ndarray) -> bytes:
    """The channels of a layer's output as a mask: a PNG whose opacity is the activation."""
    return _mask(activation_tiles(values)[:MOST_TILES])


def filter_mask(weight: np.ndarray, negative: bool) -> bytes:
    """The positive or the negative part of filters as a mask."""
    tiles = filter_tiles(weight)
    return _mask(np.maximum(-tiles if negative else tiles, 0.0))


def filter_colours(weight: np.ndarray) -> bytes:
    """Filters of three channels as colours."""
    tiles = filter_tiles(weight)
    fitted = np.stack([_fitted(tiles[..., c]) for c in range(3)], axis=-1)
    return png(as_bytes(atlas(fitted, grid_of(len(tiles))[0])))


def has_colours(weight: np.ndarray) -> bool:
    """Whether filters are shown as colours."""
    return weight.ndim == 4 and weight.shape[1] == 3


def channel_overlay(image: np.ndarray, values: np.ndarray, side: int = 320) -> bytes:
    """One channel of a layer over the image."""
    return png(overlay(image, values, "warm", shown_size(image, side)))


def _mask(tiles: np.ndarray) -> bytes:
    opacity = as_bytes(atlas(_fitted(tiles), grid_of(len(tiles))[0]))
    return png(np.stack([np.zeros_like(opacity), opacity], axis=-1))


def _fitted(tiles: np.ndarray) -> np.ndarray:
    """Tiles of a size that looks sharp: small ones enlarged by whole numbers, large ones averaged."""
    height, width = tiles.shape[1:]
    factor = max(1, SMALLEST // max(height, width))
    bigger = tiles.repeat(factor, axis=1).repeat(factor, axis=2)
    scale = min(1.0, LARGEST / max(bigger.shape[1:]))
    size = max(1, round(bigger.shape[1] * scale)), max(1, round(bigger.shape[2] * scale))
    return bigger if scale == 1.0 else resized(bigger, size)
