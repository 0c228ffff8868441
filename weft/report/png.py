"""A minimal PNG encoder for uint8 arrays."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from ..errors import UserError

COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}  # by channels: grayscale, grayscale with alpha, RGB, RGBA


def png(array: Any) -> bytes:
    """Encode a PNG file: (height, width) grayscale, or (height, width, channels) with 1 to 4 channels.

    >>> png(np.zeros((2, 3), "uint8"))[:4]
    b'\\x89PNG'
    """
    pixels = np.asarray(array)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.size == 0 or pixels.shape[2] not in COLOUR_TYPES:
        what = f"{pixels.dtype} of shape {np.shape(array)}"
        raise UserError(
            "png", f"an image must be uint8 (height, width) or (height, width, 1 to 4 channels), got {what}."
        )
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, COLOUR_TYPES[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(_rows(pixels), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(name, data) for name, data in parts)


def data_url(picture: bytes) -> str:
    """A PNG as a data URL."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def _rows(pixels: np.ndarray) -> bytes:
    """The rows with the Up filter (2): photographs become a third smaller."""
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, width * channels)
    above = np.vstack([np.zeros_like(rows[:1]), rows[:-1]])
    return np.hstack([np.full((height, 1), 2, np.uint8), rows - above]).tobytes()


def _part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
