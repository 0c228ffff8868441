"""Images, folders and checks for tests of damaged data."""

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft.testing import counted, generator

NOISE = generator("hostile").integers(0, 256, (20, 30, 3), np.uint8)


def refused(kind: type[Exception], text: str):
    """The call is rejected with this text, given word for word."""
    counted()
    return pytest.raises(kind, match=re.escape(text))


def encoded(kind: str, image: Image.Image | None = None, **settings: object) -> bytes:
    buffer = io.BytesIO()
    (image or Image.fromarray(NOISE)).save(buffer, kind, **settings)
    return buffer.getvalue()


def make_class(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(NOISE).save(folder / f"{number}.png")


def failures(folder: Path) -> dict[str, str]:
    with open(folder / "failed.csv", newline="", encoding="utf-8", errors="surrogateescape") as file:
        return dict(list(csv.reader(file))[1:])
