"""Resizes images to a fixed size in one of four modes."""

from __future__ import annotations

from typing import Literal

from PIL import Image

Resize = Literal["squash", "crop", "fill", "half_crop_half_fill"]
WAYS: tuple[Resize, ...] = ("squash", "crop", "fill", "half_crop_half_fill")


def resize(image: Image.Image, size: tuple[int, int], way: Resize) -> Image.Image:
    """Resize an image to (height, width).

    `squash` stretches it. The other modes keep the aspect ratio: `crop` crops the longer side, `fill` pads the shorter
    side with black, and `half_crop_half_fill` uses the mean of both scales, so that it crops one side and pads the other.

    >>> wide = Image.new("L", (8, 2), 255)
    >>> [resize(wide, (4, 4), way).tobytes().count(255) for way in WAYS]
    [16, 16, 4, 8]
    """
    height, width = size
    if image.size == (width, height):
        return image
    if way == "squash":
        return image.resize((width, height), Image.Resampling.BILINEAR)
    across, down = image.width / width, image.height / height  # source pixels per pixel of the result
    scale = {"crop": min(across, down), "fill": max(across, down)}.get(way, (across + down) / 2)
    return _centred(image, width, height, scale)


def _centred(image: Image.Image, width: int, height: int, scale: float) -> Image.Image:
    """Centre the image at a scale in the result. Only the visible part is resampled."""
    visible = (_clip(image.width / scale, width), _clip(image.height / scale, height))
    part = (min(image.width, width * scale), min(image.height, height * scale))
    left, top = (image.width - part[0]) / 2, (image.height - part[1]) / 2
    box = (left, top, left + part[0], top + part[1])
    small = image.resize(visible, Image.Resampling.BILINEAR, box=box)
    if visible == (width, height):
        return small
    canvas = Image.new(image.mode, (width, height))
    canvas.paste(small, ((width - visible[0]) // 2, (height - visible[1]) // 2))
    return canvas


def _clip(length: float, most: int) -> int:
    return max(1, min(most, round(length)))
