"""Converts a chunk of image files to the bytes that are stored; runs in the main process or in workers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from ..records import dataclass
from .images import Colour, Unreadable, read_image
from .resize import Resize, resize
from .statistics import histogram

Encoding = Literal["png", "jpeg"]
Store = Literal["arrays", "lmdb"]
QUALITY = 90  # of JPEG


@dataclass(frozen=True)
class ConversionOptions:
    """How each image is converted and stored."""

    size: tuple[int, int]
    fixed: bool  # all images must have this size; others fail
    resize: Resize
    colour: Colour
    store: Store
    encoding: Encoding

    @property
    def shape(self) -> tuple[int, int, int]:
        return (3 if self.colour == "rgb" else 1, *self.size)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ConversionOptions:
        return cls(**{**values, "size": tuple(values["size"])})


class ConvertedChunk(NamedTuple):
    """The result of one chunk: the bytes of each converted image, an error or None per file, and a histogram."""

    images: list[bytes]
    reasons: list[str | None]
    counts: np.ndarray  # (channels, 256)


def convert(paths: Sequence[str], options: ConversionOptions) -> ConvertedChunk:
    """Read, resize and encode each file."""
    images: list[bytes] = []
    reasons: list[str | None] = []
    counts = np.zeros((options.shape[0], 256), np.int64)
    for path in paths:
        try:
            packed, values = _pack(_prepare(path, options), options)
        except Unreadable as reason:
            reasons.append(str(reason))
            continue
        counts += histogram(values[None])
        images.append(packed)
        reasons.append(None)
    return ConvertedChunk(images, reasons, counts)


def _prepare(path: str, options: ConversionOptions) -> Image.Image:
    image = read_image(path, options.colour)
    height, width = options.size
    if options.fixed and image.size != (width, height):
        raise Unreadable(f"is {image.height} x {image.width}, most images are {height} x {width}; pass a size")
    return resize(image, options.size, options.resize)


def _pack(image: Image.Image, options: ConversionOptions) -> tuple[bytes, np.ndarray]:
    """The stored bytes and the pixel values that training reads: JPEG is lossy, so they differ from the input."""
    if options.store == "arrays":
        values = to_array(image)
        return values.tobytes(), values
    buffer = io.BytesIO()
    if options.encoding == "jpeg":
        image.save(buffer, "JPEG", quality=QUALITY)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue(), decode(buffer.getvalue())


def decode(packed: bytes | memoryview) -> np.ndarray:
    """An encoded image as (channels, height, width)."""
    with Image.open(io.BytesIO(packed), formats=("PNG", "JPEG")) as image:
        return to_array(image)


def to_array(image: Image.Image) -> np.ndarray:
    """An image of mode RGB or L as (channels, height, width)."""
    values = np.asarray(image)
    return np.ascontiguousarray(values[None] if values.ndim == 2 else values.transpose(2, 0, 1))
