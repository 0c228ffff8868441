"""Reads one image file of unknown origin. Whatever is wrong with it ends in `Unreadable` with a reason, never in a crash.

The content decides what a file is, not its name. Only kinds that Pillow decodes by itself are tried; none starts a program.
"""

from __future__ import annotations

import os
import stat
import warnings
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Colour = Literal["rgb", "gray"]
KINDS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO")
MOST_PIXELS = 1 << 26  # a few bytes can claim any size: this is looked at before anything is decoded
_WIDE = ("I", "I;16", "I;16L", "I;16B", "I;16N")


class Unreadable(Exception):
    """Why a file gives no image, in words that follow the name of the file."""


def read_image(path: str, colour: Colour) -> Image.Image:
    """The image in a file, upright, in mode RGB or L."""
    _check_file(path)
    # What a decoder complains about and reads all the same is no business of the user; a claim of enormous size is.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=_kinds()) as image:
                _check_size(image)
                image.load()
                return _to_colour(_upright(image), colour)
        except Unreadable:
            raise
        except Exception as error:  # decoders raise errors of every kind on damaged files
            raise Unreadable(_reason(error)) from None


def image_size(path: str) -> tuple[int, int]:
    """Height and width of the upright image, from its header alone."""
    _check_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=_kinds()) as image:
                _check_size(image)
                turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
                return (image.width, image.height) if turned else (image.height, image.width)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(_reason(error)) from None


@lru_cache
def _kinds() -> list[str]:
    """Those of KINDS that this build of Pillow can read."""
    Image.init()
    return [kind for kind in KINDS if kind in Image.OPEN]


def _check_file(path: str) -> None:
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise Unreadable(_reason(error)) from None
    if stat.S_ISDIR(found.st_mode):
        raise Unreadable("is a folder")
    if not stat.S_ISREG(found.st_mode):  # to open a pipe would wait for ever
        raise Unreadable("is no regular file")
    if found.st_size == 0:
        raise Unreadable("is empty (0 bytes)")


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise Unreadable(f"claims {image.width} x {image.height} pixels, more than {MOST_PIXELS:,} are not decoded")
    if image.width < 1 or image.height < 1:
        raise Unreadable(f"claims {image.width} x {image.height} pixels")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # notes about the camera that cannot be read do not spoil the picture
        return image


def _to_colour(image: Image.Image, colour: Colour) -> Image.Image:
    if image.mode in _WIDE:
        image = _from_wide(image)
    elif image.mode == "F":
        image = _from_floats(image)
    elif image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("RGB" if colour == "rgb" else "L")


def _from_wide(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise Unreadable(f"has values from {values.min()} to {values.max()}; those of 16 bits end at 65535")
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _from_floats(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
        raise Unreadable(f"has floats from {values.min():g} to {values.max():g}; only those in [0, 1] have a meaning")
    return Image.fromarray(np.rint(values * 255).astype(np.uint8))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"is not an image of a known kind ({', '.join(_kinds())})"
    if isinstance(error, (Image.DecompressionBombWarning, Image.DecompressionBombError)):
        return f"claims too many pixels, more than {MOST_PIXELS:,} are not decoded"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    text = " ".join(str(error).split())[:200]
    return f"cannot be decoded: {text or type(error).__name__}"
