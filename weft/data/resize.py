"""Brings images of any size to one size, in four ways."""

from __future__ import annotations

from typing import Literal

from PIL import Image

Resize = Literal["squash", "crop", "fill", "half_crop_half_fill"]
WAYS: tuple[Resize, ...] = ("squash", "crop", "fill", "half_crop_half_fill")


def resize(image: Image.Image, size: tuple[int, int], way: Resize) -> Image.Image:
    """The image at (height, width).

    `squash` stretches it. The others keep its proportions: `crop` cuts off what stands out, `fill` adds black at the
    sides, and `half_crop_half_fill` takes the scale between the two, so that it cuts one side and adds at the other.

    >>> wide = Image.new("L", (8, 2), 255)
    >>> [resize(wide, (4, 4), way).tobytes().count(255) for way in WAYS]
    [16, 16, 4, 8]
    """
    height, width = size
    if image.size == (width, height):
        return image
    if way == "squash":
        return image.resize((width, height), Image.Resampling.BILINEAR)
    across, down = image.width / width, image.height / height  # pixels of the file for a pixel of the result
    scale = {"crop": min(across, down), "fill": max(across, down)}.get(way, (across + down) / 2)
    return _placed(image, width, height, scale)


def _placed(image: Image.Image, width: int, height: int, scale: float) -> Image.Image:
    """The middle of the image at a scale, in the middle of the result. What will not be seen is never computed."""
    seen = (_clip(image.width / scale, width), _clip(image.height / scale, height))
    part = (min(image.width, width * scale), min(image.height, height * scale))
    left, top = (image.width - part[0]) / 2, (image.height - part[1]) / 2
    box = (left, top, left + part[0], top + part[1])
    small = image.resize(seen, Image.Resampling.BILINEAR, box=box)
    if seen == (width, height):
        return small
    canvas = Image.new(image.mode, (width, height))
    canvas.paste(small, ((width - seen[0]) // 2, (height - seen[1]) // 2))
    return canvas


def _clip(length: float, most: int) -> int:
    return max(1, min(most, round(length)))
