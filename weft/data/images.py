"""Reads one untrusted image file. Every problem raises `Unreadable` with a reason.

The format is detected from the content, not from the name. Only formats that Pillow decodes itself are accepted; none
starts another program.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from functools import lru_cache
from typing import Literal

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

Colour = Literal["rgb", "gray"]
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000", "ICO")
MAX_PIXELS = 1 << 26  # checked before decoding: a header of a few bytes can claim any size
_MODES_16_BIT = ("I", "I;16", "I;16L", "I;16B", "I;16N")


class Unreadable(Exception):
    """The reason why a file is not a readable image; reads as a sentence after the file name."""


def read_image(path: str, colour: Colour) -> Image.Image:
    """Read an image, apply its EXIF orientation, and convert it to mode RGB or L."""
    _check_file(path)
    return _decode(path, colour)


def decode_image(content: bytes, colour: Colour) -> Image.Image:
    """The same for the content of an image file. Content that a stranger sends is decoded in a process of its own: weft/studio/decoding.py."""
    if not content:
        raise Unreadable("is empty (0 bytes)")
    return _decode(io.BytesIO(content), colour)


def _decode(source: str | io.BytesIO, colour: Colour) -> Image.Image:
    # Warnings about images that decode anyway are ignored, except for a claim of enormous size.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with _open(source) as image:
                _check_size(image)
                image.load()
                return _to_colour(_upright(image), colour)
        except Unreadable:
            raise
        except Exception as error:  # decoders raise many types of errors on damaged files
            raise Unreadable(_reason(error)) from None


def image_size(path: str) -> tuple[int, int]:
    """Height and width of an image after its EXIF orientation, read from the header."""
    _check_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with _open(path) as image:
                _check_size(image)
                turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
                return (image.width, image.height) if turned else (image.height, image.width)
        except Unreadable:
            raise
        except Exception as error:
            raise Unreadable(_reason(error)) from None


def _open(source: str | io.BytesIO) -> Image.Image:
    """Open an image by its content. Plugins for the rarer formats are imported for an image that needs them."""
    Image.preinit()
    try:
        return Image.open(source, formats=[kind for kind in FORMATS if kind in Image.OPEN])
    except UnidentifiedImageError:
        if isinstance(source, io.BytesIO):
            source.seek(0)
        return Image.open(source, formats=_formats())


@lru_cache
def _formats() -> list[str]:
    """The formats that this build of Pillow can read."""
    Image.init()
    return [kind for kind in FORMATS if kind in Image.OPEN]


def _check_file(path: str) -> None:
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise Unreadable(_reason(error)) from None
    if stat.S_ISDIR(found.st_mode):
        raise Unreadable("is a folder")
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would block forever
        raise Unreadable("is not a regular file")
    if found.st_size == 0:
        raise Unreadable("is empty (0 bytes)")


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise Unreadable(f"claims {image.width} x {image.height} pixels, more than {MAX_PIXELS:,} are not decoded")
    if image.width < 1 or image.height < 1:
        raise Unreadable(f"claims {image.width} x {image.height} pixels")


def _upright(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable EXIF data does not make the image unreadable
        return image


def _to_colour(image: Image.Image, colour: Colour) -> Image.Image:
    if image.mode in _MODES_16_BIT:
        image = _from_16_bit(image)
    elif image.mode == "F":
        image = _from_floats(image)
    elif image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("RGB" if colour == "rgb" else "L")


def _from_16_bit(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise Unreadable(f"has values from {values.min()} to {values.max()}; 16-bit values are from 0 to 65535")
    return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))


def _from_floats(image: Image.Image) -> Image.Image:
    values = np.asarray(image)
    if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
        raise Unreadable(f"has floats from {values.min():g} to {values.max():g}; floats must lie in [0, 1]")
    return Image.fromarray(np.rint(values * 255).astype(np.uint8))


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"is not an image in a supported format ({', '.join(_formats())})"
    if isinstance(error, (Image.DecompressionBombWarning, Image.DecompressionBombError)):
        return f"claims too many pixels, more than {MAX_PIXELS:,} are not decoded"
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    text = " ".join(str(error).split())[:200]
    return f"cannot be decoded: {text or type(error).__name__}"
