"""Image files that are damaged, unusual, or claim what they do not hold: a clear message each, nothing crashes."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hostile_tools import NOISE, encoded
from weft.data import images as images_module
from weft.data.images import Unreadable, image_size, read_image
from weft.testing import counted, generator


def png_of(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims a size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def check_unreadable(path: Path, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        read_image(str(path), "rgb")
    counted()


DAMAGED = {
    "empty": (b"", "is empty \\(0 bytes\\)"),
    "one byte": (b"\xff", "is not an image in a supported format"),
    "text": (b"hello, I am a picture", "is not an image in a supported format \\(PNG, JPEG"),
    "html": (b"<html>404</html>", "is not an image in a supported format"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "is not an image in a supported format"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is not an image in a supported format"),
    "png cut": (encoded("PNG")[:-600], "truncated|decoded"),
    "png head only": (encoded("PNG")[:40], "cannot be decoded|is not an image"),
    "png with a wrong byte": (encoded("PNG")[:300] + b"\0\0\0" + encoded("PNG")[303:], "cannot be decoded"),
    "png of no size": (png_of(0, 5), "claims|cannot|is not an image"),
    "jpeg cut": (encoded("JPEG")[:-200], "truncated"),
    "jpeg head only": (encoded("JPEG")[:100], "is not an image|cannot be decoded"),
    "gif cut": (encoded("GIF")[:900], "cannot be decoded|truncated"),
    "bmp cut": (encoded("BMP")[:500], "truncated|cannot be decoded"),
    "tiff cut": (encoded("TIFF")[:700], "cannot|is not an image|decoded"),
    "webp cut": (encoded("WEBP", lossless=True)[:200], "cannot|is not an image"),
    "bomb": (png_of(60_000, 60_000), "claims (60000 x 60000|too many) pixels"),
    "small bomb": (png_of(9_000, 9_000), "claims 9000 x 9000 pixels, more than 67,108,864 are not decoded"),
    "middle bomb": (png_of(10_000, 10_000), "claims too many pixels"),
    "bomb of a line": (png_of(2_000_000_000, 1), "claims (2000000000 x 1|too many) pixels"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_image(tmp_path: Path, name: str) -> None:
    content, text = DAMAGED[name]
    (tmp_path / "x.jpg").write_bytes(content)
    check_unreadable(tmp_path / "x.jpg", text)
    try:  # its size alone may be readable, but nothing else may happen
        image_size(str(tmp_path / "x.jpg"))
    except Unreadable:
        pass


def test_random_damage_never_escapes(tmp_path: Path) -> None:
    """Whatever bytes are changed, an image comes or a reason."""
    random = generator("damage")
    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO"):
        whole = np.frombuffer(encoded(kind), np.uint8)
        for _ in range(25):
            broken = whole.copy()
            places = random.integers(0, len(whole), random.integers(1, 30))
            broken[places] = random.integers(0, 256, len(places))
            (tmp_path / "x").write_bytes(broken[: random.integers(1, len(whole) + 1)].tobytes())
            said = image_or_reason(tmp_path / "x")
            assert said
            assert "\n" not in said
            counted()


def image_or_reason(path: Path) -> str:
    try:
        return read_image(str(path), "rgb").mode
    except Unreadable as reason:
        return str(reason)


def test_things_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    check_unreadable(tmp_path / "folder.jpg", "^is a folder$")
    os.mkfifo(tmp_path / "pipe.jpg")
    check_unreadable(tmp_path / "pipe.jpg", "^is not a regular file$")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    check_unreadable(tmp_path / "loop.jpg", "cannot be read: Too many levels of symbolic links")
    check_unreadable(tmp_path / "nothing.jpg", "cannot be read: No such file")
    check_unreadable(tmp_path / ("x" * 5000), "cannot be read: File name too long")
    check_unreadable(Path("zero\0byte.jpg"), "cannot be decoded: embedded null byte")


def test_files_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.png").write_bytes(encoded("PNG"))

    def forbidden(*arguments: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(images_module.Image, "open", forbidden)  # root may read everything, so it is played
    check_unreadable(tmp_path / "x.png", "cannot be read: Permission denied")


# Images of unusual kinds are no failures.

ALPHA = np.dstack([NOISE, np.full((20, 30), 0, np.uint8)])
WIDE = (np.arange(600).reshape(20, 30) * 109).astype(np.uint16)  # up to 65291
GRAY = Image.fromarray(NOISE).convert("L")

UNUSUAL = {
    "transparent is white": (encoded("PNG", Image.fromarray(ALPHA)), np.full((20, 30, 3), 255)),
    "16 bits": (encoded("PNG", Image.fromarray(WIDE)), np.rint(WIDE / 257)[..., None].repeat(3, 2)),
    "16 bits in TIFF": (encoded("TIFF", Image.fromarray(WIDE)), np.rint(WIDE / 257)[..., None].repeat(3, 2)),
    "floats": (encoded("TIFF", Image.fromarray(np.full((2, 2), 0.2, np.float32))), np.full((2, 2, 3), 51)),
    "gray": (encoded("PNG", GRAY), np.asarray(GRAY)[..., None].repeat(3, 2)),
    "one bit": (encoded("PNG", Image.new("1", (3, 2), 1)), np.full((2, 3, 3), 255)),
    "palette": (encoded("GIF", Image.new("RGB", (3, 2), (10, 20, 30))), np.tile([10, 20, 30], (2, 3, 1))),
    "CMYK": (encoded("TIFF", Image.new("CMYK", (3, 2), (255, 0, 0, 0))), np.tile([0, 255, 255], (2, 3, 1))),
    "first frame": (
        encoded(
            "GIF", Image.new("RGB", (3, 2), "red"), save_all=True, append_images=[Image.new("RGB", (3, 2), "blue")]
        ),
        np.tile([255, 0, 0], (2, 3, 1)),
    ),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_image(tmp_path: Path, name: str) -> None:
    content, expected = UNUSUAL[name]
    (tmp_path / "x.jpg").write_bytes(content)  # the extension is wrong for all: content decides
    np.testing.assert_array_equal(np.asarray(read_image(str(tmp_path / "x.jpg"), "rgb")), expected)
    assert read_image(str(tmp_path / "x.jpg"), "gray").mode == "L"
    assert image_size(str(tmp_path / "x.jpg")) == expected.shape[:2]
    counted()


@pytest.mark.parametrize(("orientation", "turn"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_photos_stand_upright(tmp_path: Path, orientation: int, turn: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "x.png").write_bytes(encoded("PNG", exif=exif))
    np.testing.assert_array_equal(np.asarray(read_image(str(tmp_path / "x.png"), "rgb")), np.rot90(NOISE, turn))
    assert image_size(str(tmp_path / "x.png")) == np.rot90(NOISE, turn).shape[:2]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.array([[0.0, 2.0]], np.float32), "has floats from 0 to 2; floats must lie in \\[0, 1\\]"),
        (np.array([[0.0, np.nan]], np.float32), "has floats from nan"),
        (np.array([[0, 70000]], np.int32), "has values from 0 to 70000; 16-bit values are from 0 to 65535"),
    ],
)
def test_values_without_a_meaning(tmp_path: Path, values: np.ndarray, text: str) -> None:
    (tmp_path / "x.tif").write_bytes(encoded("TIFF", Image.fromarray(values)))
    check_unreadable(tmp_path / "x.tif", text)
