"""Checks that images of strangers are decoded as others are, and that hostile ones cost no more than their limits."""

from __future__ import annotations

import io
import os
import signal
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft.data.convert import to_array
from weft.data.images import MAX_PIXELS, Unreadable, read_image
from weft.data.resize import WAYS, resize
from weft.studio import decoding
from weft.studio.decoding import GuardedDecoder

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture(scope="module")
def decoder() -> Iterator[GuardedDecoder]:
    made = GuardedDecoder(workers=1)
    yield made
    made.close()


def encoded(kind: str = "PNG", image: Image.Image | None = None) -> bytes:
    file = io.BytesIO()
    (image or Image.fromarray(PICTURE)).save(file, kind)
    return file.getvalue()


def png(width: int, height: int, data: bytes) -> bytes:
    """A PNG file with any claims about its size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF"])
def test_pixels_are_those_of_the_same_file_read_directly(kind: str, decoder: GuardedDecoder, tmp_path: Path) -> None:
    content = encoded(kind)
    (tmp_path / "image").write_bytes(content)
    for channels, way in ((3, WAYS[0]), (1, WAYS[1])):
        direct = read_image(str(tmp_path / "image"), "rgb" if channels == 3 else "gray")
        expected = to_array(resize(direct, (16, 24), way))
        np.testing.assert_array_equal(decoder.pixels(content, (channels, 16, 24), way), expected)
    assert decoder.scaled(content, 20).shape == (3, 13, 20)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"GIF89a" + b"\x00" * 50, "is not an image in a supported format"),
        (bytes(range(256)) * 4000, "is not an image in a supported format"),
        (encoded()[:200], "cannot be decoded"),
        (png(60_000, 60_000, zlib.compress(b"\x00" * 1000)), "claims"),
        (png(MAX_PIXELS, 1, b""), "cannot be decoded"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is not an image in a supported format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "is not an image in a supported format"),
    ],
    ids=["empty", "short gif", "garbage", "cut off", "huge claim", "wide claim", "svg", "postscript"],
)
def test_files_that_are_no_images_are_refused_with_the_reason(
    content: bytes, reason: str, decoder: GuardedDecoder
) -> None:
    with pytest.raises(Unreadable, match=reason):
        decoder.pixels(content, (3, 8, 8), "crop")


def test_a_decompression_bomb_needs_no_more_memory_than_the_limit() -> None:
    # Within the limit of pixels; less than a megabyte as a file, 190 MB and more when it is decoded.
    width = height = 8000
    packer, row = zlib.compressobj(1), b"\x00" * (1 + 3 * width)
    bomb = png(width, height, b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()]))
    assert len(bomb) < 1_000_000
    small = GuardedDecoder(workers=1, memory=400 << 20)
    with pytest.raises(Unreadable, match="needs more memory than there is"):
        small.pixels(bomb, (3, 8, 8), "crop")
    assert small.pixels(encoded(), (3, 8, 8), "crop").shape == (3, 8, 8)
    small.close()


def test_an_image_that_takes_too_long_ends_its_process_and_the_next_one_is_decoded() -> None:
    decoder = GuardedDecoder(workers=1, seconds=0.2)
    decoder.start()
    worker = decoder._slots.queue[0]
    assert worker is not None
    worker.wait_until_ready()
    os.kill(worker._process.pid, signal.SIGSTOP)  # as if it were busy for ever
    with pytest.raises(Unreadable, match="takes longer than 0.2 seconds"):
        decoder.pixels(encoded(), (3, 8, 8), "crop")
    assert not worker.lives()
    decoder.seconds = 60.0
    assert decoder.pixels(encoded(), (1, 8, 8), "crop").shape == (1, 8, 8)
    decoder.close()


def test_a_decoder_that_lies_is_not_believed(decoder: GuardedDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding._DecodeWorker, "_line", lambda worker, until: b'{"shape": [3, 100000, 100000]}')
    with pytest.raises(Unreadable, match="makes the decoder fail"):
        decoder.pixels(encoded(), (3, 8, 8), "crop")


def test_several_threads_share_the_processes_and_a_usual_image_is_quick(decoder: GuardedDecoder) -> None:
    photo = encoded("JPEG", Image.fromarray(PICTURE).resize((1200, 800)))
    decoder.pixels(photo, (3, 224, 224), "crop")
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(int(decoder.pixels(photo, (3, 224, 224), "crop").sum())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results)) == 1
    assert len(results) == 4
