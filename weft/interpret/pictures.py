"""Pictures of maps, activations and filters, as arrays of pixels."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..errors import UserError

# Two colours of a map over an image: at half strength and at full strength.
COLOURS = {"warm": ((150, 52, 24), (250, 178, 62)), "green": ((20, 120, 100), (79, 235, 192))}
STRENGTH = 0.72  # of the colour where a map is largest
FAINTEST = 0.1  # of a layer's range: channels with less of it are not amplified to full contrast
LARGEST_TILE = 64  # pixels of a side
MOST_TILES = 256
Colour = Literal["warm", "green"]


def rgb(image: Any) -> np.ndarray:
    """An image (channels, height, width) of bytes, or of floats from 0 to 1, as (height, width, 3) bytes."""
    found = np.asarray(image)
    if found.ndim != 3 or found.shape[0] not in (1, 3):
        raise UserError("rgb", f"an image of 1 or 3 channels (channels, height, width) is required, got {found.shape}.")
    if found.dtype != np.uint8:
        found = np.clip(255.0 * found.astype(np.float64) + 0.5, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(found.transpose(1, 2, 0), (*found.shape[1:], 3)))


def resized(values: np.ndarray, size: tuple[int, int], smooth: bool = True) -> np.ndarray:
    """Maps (..., height, width) at another size: bilinear, or the nearest value.

    >>> resized(np.array([[0.0, 1.0]]), (1, 4)).tolist()
    [[0.0, 0.25, 0.75, 1.0]]
    """
    rows, columns = (_interpolation(n, m, smooth) for n, m in zip(values.shape[-2:], size, strict=True))
    return np.asarray(rows @ values @ columns.T)


def _interpolation(old: int, new: int, smooth: bool) -> np.ndarray:
    """The matrix that makes `new` values of `old` ones; where it shrinks, values are averaged."""
    if new < old:
        edges = np.linspace(0, old, new + 1)
        overlap = np.minimum(edges[1:, None], np.arange(1, old + 1)) - np.maximum(edges[:-1, None], np.arange(old))
        return np.asarray(np.maximum(overlap, 0.0) / (old / new))
    places = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    places = places if smooth else np.floor((np.arange(new) + 0.5) * old / new)
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(old))))


def overlay(
    image: Any, values: Any, colour: Colour = "warm", size: tuple[int, int] | None = None, smooth: bool = True
) -> np.ndarray:
    """An image with a map over it: (height, width, 3) bytes. Positive values are shown, the largest in full colour.

    The picture has the size of the image, or `size`; small images are shown without interpolation, so that their pixels can be seen.
    """
    pixels = rgb(image)
    size = size or pixels.shape[:2]
    base = resized(pixels.transpose(2, 0, 1).astype(np.float64), size, smooth=False).transpose(1, 2, 0)
    heat = np.maximum(np.asarray(values, np.float64), 0.0)
    heat = resized(heat / max(heat.max(), 1e-12), size, smooth)[..., None]
    low, high = (np.array(c, np.float64) for c in COLOURS[colour])
    tint = low + (high - low) * heat
    weight = STRENGTH * np.minimum(1.0, 1.6 * heat)
    return np.asarray(np.clip(base * (1.0 - weight) + tint * weight, 0, 255).astype(np.uint8))


def activation_tiles(values: Any) -> np.ndarray:
    """The channels of one example's activations, each as a picture with values from 0 to 1: (channels, height, width).

    Vectors give one pixel for each number, sequences of vectors a row for each channel.
    """
    found = np.asarray(values, np.float64)
    found = found[:, None, None] if found.ndim == 1 else found.T[:, None, :] if found.ndim == 2 else found
    if found.ndim != 3:
        raise UserError("activation_tiles", f"(channels, height, width) is required, got {np.shape(values)}.")
    low = np.minimum(found.min(axis=(1, 2), keepdims=True), 0.0)
    if found.shape[1] * found.shape[2] == 1:
        low = low.min(keepdims=True)  # numbers of a vector are compared with each other
    span = (found - low).max(axis=(1, 2), keepdims=True)
    least = (1.0 if found.shape[1] * found.shape[2] == 1 else FAINTEST) * span.max()
    return np.asarray((found - low) / np.maximum(np.maximum(span, least), 1e-12))


def filter_tiles(weight: Any) -> np.ndarray:
    """The filters of a weight, one for each output, at most 256.

    Filters of three channels are colours from 0 to 1: (n, height, width, 3). Others are numbers from -1 to 1, the kernels of all inputs
    side by side: (n, height, width).
    """
    values = np.asarray(np.asarray(weight)[:MOST_TILES], np.float64)
    if values.ndim not in (2, 4):
        raise UserError(
            "filter_tiles", f"the weight of a convolution or a linear layer is required, got shape {np.shape(weight)}."
        )
    largest = np.maximum(np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True), 1e-12)
    values = values / largest
    if values.ndim == 4 and values.shape[1] == 3:
        return np.asarray(0.5 + 0.5 * values.transpose(0, 2, 3, 1))
    kernels = values if values.ndim == 4 else values[:, :, None, None]
    count, inputs, height, width = kernels.shape
    columns = int(np.ceil(np.sqrt(inputs)))
    rows = -(-inputs // columns)
    padded = np.pad(kernels, ((0, 0), (0, rows * columns - inputs), (0, 0), (0, 0)))
    grid = padded.reshape(count, rows, columns, height, width).transpose(0, 1, 3, 2, 4)
    return _at_most(grid.reshape(count, rows * height, columns * width))


def _at_most(tiles: np.ndarray) -> np.ndarray:
    height, width = tiles.shape[1:]
    return resized(tiles, (min(height, LARGEST_TILE), min(width, LARGEST_TILE)))


def atlas(tiles: np.ndarray, columns: int, gap: int = 0, background: float = 0.0) -> np.ndarray:
    """Tiles (n, height, width[, 3]) side by side in rows, as one picture."""
    count, height, width = tiles.shape[:3]
    rows = -(-count // columns)
    made = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, *tiles.shape[3:]), background)
    for i, tile in enumerate(tiles):
        row, column = divmod(i, columns)
        made[row * (height + gap) :, column * (width + gap) :][:height, :width] = tile
    return made


def as_bytes(values: np.ndarray) -> np.ndarray:
    """Numbers from 0 to 1 as bytes."""
    return np.clip(255.0 * values + 0.5, 0, 255).astype(np.uint8)
