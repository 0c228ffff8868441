"""From image files to the bytes of a store: the work of one chunk, the same in this process and in others."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from .images import Colour, Unreadable, read_image
from .resize import Resize, resize
from .statistics import histogram

Encoding = Literal["png", "jpeg"]
Store = Literal["arrays", "lmdb"]
QUALITY = 90  # of JPEG


@dataclass(frozen=True)
class Recipe:
    """What becomes of each image."""

    size: tuple[int, int]
    fixed: bool  # images come in this size already; another one is a failure
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
    def from_json(cls, values: dict[str, Any]) -> Recipe:
        return cls(**{**values, "size": tuple(values["size"])})


class Converted(NamedTuple):
    """What became of a chunk: the bytes of the good ones, a reason or None for each, and the bytes counted."""

    images: list[bytes]
    reasons: list[str | None]
    counts: np.ndarray  # (channels, 256)


def convert(paths: Sequence[str], recipe: Recipe) -> Converted:
    """Read, resize and pack each file."""
    images: list[bytes] = []
    reasons: list[str | None] = []
    counts = np.zeros((recipe.shape[0], 256), np.int64)
    for path in paths:
        try:
            packed, values = _pack(_prepare(path, recipe), recipe)
        except Unreadable as reason:
            reasons.append(str(reason))
            continue
        counts += histogram(values[None])
        images.append(packed)
        reasons.append(None)
    return Converted(images, reasons, counts)


def _prepare(path: str, recipe: Recipe) -> Image.Image:
    image = read_image(path, recipe.colour)
    height, width = recipe.size
    if recipe.fixed and image.size != (width, height):
        raise Unreadable(f"is {image.height} x {image.width}, most images are {height} x {width}; give a size")
    return resize(image, recipe.size, recipe.resize)


def _pack(image: Image.Image, recipe: Recipe) -> tuple[bytes, np.ndarray]:
    """What is stored, and the values that training will see: those of a JPEG are not those that went in."""
    if recipe.store == "arrays":
        values = to_array(image)
        return values.tobytes(), values
    buffer = io.BytesIO()
    if recipe.encoding == "jpeg":
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
