"""Data that is damaged, lies, or means harm: a clear message each, nothing crashes, nothing is silently dropped."""

import csv
import gzip
import io
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data
from weft.data import images as images_module
from weft.data.images import Unreadable, image_size, read_image
from weft.data.npz import outline_npz
from weft.data.scan import scan_source
from weft.errors import RunError, UserError
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


# Image files.

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


# Whole sources.


def make_class(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(NOISE).save(folder / f"{number}.png")


def failures(folder: Path) -> dict[str, str]:
    with open(folder / "failed.csv", newline="", encoding="utf-8", errors="surrogateescape") as file:
        return dict(list(csv.reader(file))[1:])


def test_everything_is_accounted_for(tmp_path: Path) -> None:
    """Good files, bad files and odd names in one folder: each is in a split or in failed.csv, under its name."""
    root = tmp_path / "photos"
    make_class(root / 'a class, with "quotes" and ünïcode', 4)
    make_class(root / "plain" / "folder.jpg", 4)  # a folder named as an image is a folder
    odd = root / "plain"
    for name in (
        "new\nline.png",
        "a..b.png",
        "-rf",
        "back\\slash.png",
        "comma,.png",
        os.fsdecode(b"latin\xe9.png"),
    ):
        Image.fromarray(NOISE).save(odd / name, "PNG")
    (odd / "bad\nline.png").write_bytes(encoded("PNG")[:100])
    (odd / os.fsdecode(b"bad\xe9.png")).write_bytes(b"")
    (odd / "folder.jpg" / "up").symlink_to(root)
    (odd / "loop.png").symlink_to("loop.png")
    (odd / "gone.png").symlink_to("nowhere.png")
    os.mkfifo(odd / "pipe.png")
    made = data.create(root, tmp_path / "made", size=(8, 8), validation=0)
    assert made.train.counts() == {'a class, with "quotes" and ünïcode': 4, "plain": 10}
    reasons = failures(tmp_path / "made")
    assert reasons.pop("plain/bad\nline.png").startswith("cannot be decoded")
    assert reasons.pop(os.fsdecode(b"plain/bad\xe9.png")) == "is empty (0 bytes)"
    assert reasons == {
        "plain/folder.jpg/up": "passed over: is a link to ., which is already included",
        "plain/gone.png": "passed over: is a broken or cyclic link",
        "plain/loop.png": "passed over: is a broken or cyclic link",
        "plain/pipe.png": "passed over: is not a regular file",
    }
    about = data.describe(tmp_path / "made")
    assert (about["failed"], about["passed_over"]) == (2, 4)
    names = (tmp_path / "made" / "train" / "names.txt").read_bytes().split(b"\n")[:-1]
    assert len(names) == 14
    assert {b"plain/new\\nline.png", b"plain/back\\\\slash.png", b"plain/latin\xe9.png"} < set(names)
    counted(22)


def test_more_than_half_failed_is_an_error(tmp_path: Path) -> None:
    make_class(tmp_path / "a" / "x", 3)
    for number in range(4):
        (tmp_path / "a" / "x" / f"bad{number}.png").write_text("no image")
    with refused(RunError, "4 of 7 files failed, more than half: x/bad"):
        data.create(tmp_path / "a", tmp_path / "made")
    assert not (tmp_path / "made").exists()
    assert len(failures(tmp_path / ".made.partial")) == 4, "the list is where the message says"
    (tmp_path / "a" / "x" / "bad0.png").unlink()
    data.create(tmp_path / "a", tmp_path / "made")
    assert data.describe(tmp_path / "made")["failed"] == 3


def test_a_class_of_failures_is_an_error(tmp_path: Path) -> None:
    make_class(tmp_path / "a" / "good", 9)
    make_class(tmp_path / "a" / "bad", 2)
    for file in (tmp_path / "a" / "bad").iterdir():
        file.write_bytes(b"no image")
    with refused(RunError, "all training files of bad failed"):
        data.create(tmp_path / "a", tmp_path / "made")


def test_sizes_that_differ_are_failures_without_a_size(tmp_path: Path) -> None:
    make_class(tmp_path / "a" / "x", 5)
    Image.fromarray(NOISE[:4]).save(tmp_path / "a" / "x" / "zz.png")
    data.create(tmp_path / "a", tmp_path / "made", validation=0)
    assert failures(tmp_path / "made") == {"x/zz.png": "is 4 x 30, most images are 20 x 30; pass a size"}


def test_empty_sources(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with refused(
        UserError, "has no class folders. Put the images of each class into a folder with the name of the class"
    ):
        data.from_folders(tmp_path / "a")
    (tmp_path / "a" / "x").mkdir()
    with refused(UserError, "each class needs 2 files or more, got x (0)"):
        data.create(tmp_path / "a", tmp_path / "made")
    with refused(UserError, "at least one class must remain for training, a has none"):
        data.create(tmp_path / "a", tmp_path / "made", small="keep")
    with refused(UserError, "is not a folder"):
        data.from_folders(tmp_path / "nowhere")
    (tmp_path / "a" / "x" / "1").write_text("no image")
    with refused(RunError, "none of the files of a is an image"):
        data.create(tmp_path / "a", tmp_path / "made", minimum=0)


@pytest.mark.parametrize("store", ["arrays", "lmdb"])
def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setattr(sys.modules["weft.data.create"], "_CHUNK_FILES", 4)
    make_class(tmp_path / "a" / "x", 40)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    said: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
        with refused(RunError, "Completed work is kept: fix this and start again with the same settings"):
            data.create(
                tmp_path / "a", tmp_path / "made", store=store, workers=0, progress=lambda p: said.append(p.done)
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "made").exists()
    assert said
    again: list[int] = []
    made = data.create(
        tmp_path / "a", tmp_path / "made", store=store, workers=0, progress=lambda p: again.append(p.done)
    )
    assert again[0] == said[-1] + 4
    assert (made.train.inputs(slice(None)) == NOISE.transpose(2, 0, 1)).all()
    assert (len(made.train), sorted(os.listdir(tmp_path))) == (30, ["a", "made"])


# Lists.


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "../secret.png 1\n", "line 1: '../secret.png' is outside"),
        ("a.txt", "ok.png 0\nx/../../secret.png 1\n", "line 2: 'x/../../secret.png' is outside"),
        ("a.csv", "/etc/passwd,1\n", "'/etc/passwd' is outside"),
        ("a.txt", "lonely.png\n", "line 1: a path and a label are required, got 'lonely.png'"),
        ("a.csv", "x.png,1\ny.png,1,2\n", "line 2: a path and a label are required, got ['y.png', '1', '2']"),
        ("a.csv", 'x.png,"1\n', "line 1: unexpected end of data"),
        ("a.txt", "x.png 1\nx.png 0\n", "line 2: 'x.png' has the label '0', but '1' in line 1"),
        ("a.txt", "x.png -1\n", "line 1: labels must lie in 0..."),
        ("a.txt", "x.png 99999999\n", "line 1: the label 99999999 is too large"),
        ("a.txt", "\n \n", "names no files"),
        ("a.txt", "x\0.png 1\n", "is not a list: it holds zero bytes"),
    ],
)
def test_hostile_list(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with refused(UserError, message):
        data.from_list(tmp_path / name)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("cow", "line 1: the label must be one of cat, dog, got 'cow'"),
        ("2", "labels must lie in 0...1, got 2"),
        ("-1", "0...1, got -1"),
    ],
)
def test_labels_that_are_not_among_the_classes(tmp_path: Path, label: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(f"x.png,{label}\n")
    with refused(UserError, message):
        data.from_list(tmp_path / "a.csv", classes=["cat", "dog"])


def test_paths_outside_can_be_allowed(tmp_path: Path) -> None:
    make_class(tmp_path / "b", 2)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "l.txt").write_text(f"../b/0.png x\n{tmp_path}/b/1.png x\n")
    found = data.from_list(tmp_path / "a" / "l.txt", outside=True)
    assert [os.path.samefile(path, tmp_path / "b" / f"{i}.png") for i, path in enumerate(found.paths)] == [True, True]
    # An absolute path into the root needs no permission.
    assert len(data.from_list(tmp_path / "a" / "l.txt", root=tmp_path / "b")) == 2


def test_doubles_and_missing_files_are_reported(tmp_path: Path) -> None:
    make_class(tmp_path / "b", 3)
    (tmp_path / "l.txt").write_text("b/0.png x\nb/1.png x\n./b/0.png x\nb/2.png x\nb/gone.png x\nb x\n")
    made = data.create(tmp_path / "l.txt", tmp_path / "made", validation=0)
    assert len(made.train) == 3
    assert failures(tmp_path / "made") == {
        "./b/0.png": "passed over: is a duplicate: listed in lines 1 and 3",
        "b/gone.png": "cannot be read: No such file or directory",
        "b": "is a folder",
    }


# idx, CIFAR, npz.

GOOD = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 3, 4) + bytes(24)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not an idx file: it begins with nothing"),
        (b"\0\0\x08", "is not an idx file"),
        (b"PK\3\4" + GOOD[4:], "it begins with 504b0304, not with 0000"),
        (b"\0\0\x07\x03" + GOOD[4:], "type 0x07 with 3 dimensions does not exist"),
        (b"\0\0\x08\x00", "type 0x08 with 0 dimensions does not exist"),
        (GOOD[:10], "is truncated in its header"),
        (GOOD[:-1], "should hold 24 bytes of values for (2, 3, 4), it holds only 23"),
        (GOOD + b"x", "should hold 24 bytes of values for (2, 3, 4), it holds more"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "it is damaged"),
        (gzip.compress(GOOD, mtime=0)[:-12], "is truncated: its compressed data is incomplete"),
        (gzip.compress(GOOD, mtime=0)[:15], "is truncated"),
        (gzip.compress(GOOD, mtime=0)[:-8] + b"\0" * 8, "is damaged: CRC check failed"),
        (b"\x1f\x8b" + b"x" * 40, "is damaged: Unknown compression method"),
    ],
)
def test_hostile_idx(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "a").write_bytes(content)
    with refused(RunError, text):
        data.read_idx(tmp_path / "a")


def test_idx_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(GOOD)
    (tmp_path / "y").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + bytes(3))
    with refused(UserError, "x has 2 images, but"):
        data.from_idx(tmp_path / "x", tmp_path / "y")
    with refused(UserError, "holds uint8 of shape (2, 3, 4)"):
        data.from_idx(tmp_path / "x", tmp_path / "x")
    (tmp_path / "y").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 2) + bytes([1, 99]))
    with refused(UserError, "labels must lie in 0...9, got 99 for example 1"):
        data.from_idx(tmp_path / "x", tmp_path / "y", classes=list("0123456789"))
    with refused(RunError, "cannot be read: No such file"):
        data.read_idx(tmp_path / "z")


def test_hostile_cifar(tmp_path: Path) -> None:
    with refused(UserError, "has neither data_batch_1.bin nor train.bin"):
        data.from_cifar(tmp_path)
    (tmp_path / "train.bin").write_bytes(bytes(3074) * 2)
    with refused(RunError, "test.bin cannot be read"):
        data.from_cifar(tmp_path)
    (tmp_path / "test.bin").write_bytes(bytes(3000))
    with refused(RunError, "should hold records of 3074 bytes, it holds 3000 bytes"):
        data.from_cifar(tmp_path)
    (tmp_path / "test.bin").write_bytes(b"\0\x64" + bytes(3072))
    with refused(RunError, "record 0 has the label 100, there are 100 classes"):
        data.from_cifar(tmp_path)
    (tmp_path / "fine_label_names.txt").write_text("apple\n")
    with refused(RunError, "should name 100 classes, it names 1"):
        data.from_cifar(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(bytes(100))[:-9])
    with refused(RunError, "is damaged"):
        data.known("cifar10", from_=tmp_path / "in")


class Harm:
    """An object whose unpickling would be noticed."""

    def __reduce__(self) -> tuple:
        return exec, ("raise SystemExit('the pickle ran')",)


def test_hostile_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.array([Harm(), None], object), y=[0, 1])
    with refused(UserError, "holds pickled Python objects, which are never loaded because that could run code"):
        data.open_dataset(path)
    path.write_bytes(pickle.dumps(Harm()))
    with refused(UserError, "holds pickled Python objects"):
        data.from_npz(path)
    np.savez(path, a=[1], b=[2])
    with refused(UserError, "must have arrays x_train and y_train, x and y, or images and labels; it has a, b"):
        data.from_npz(path)
    with refused(UserError, "has no c; it has a, b"):
        data.from_npz(path, "a", "c")
    np.savez(path, x=np.zeros((100, 5)), y=np.zeros(100, int))
    path.write_bytes(path.read_bytes()[:-200])
    with refused(RunError, "is damaged"):
        data.from_npz(path)
    path.write_bytes(b"")
    with refused(RunError, "is damaged"):
        data.from_npz(path)
    with refused(RunError, "cannot be read: No such file"):
        data.from_npz(tmp_path / "b.npz")
    np.savez(path, x=np.zeros((3, 5)), y=[0, 1, 0])
    content = bytearray(path.read_bytes())
    content[-12] += 1  # the number of entries: the list has lost one
    path.write_bytes(content)
    with refused(RunError, "lists 2 entries and should have 3"):
        data.from_npz(path)
    np.savez(path, x=np.zeros((3, 5)), y=[0, 1])
    with refused(UserError, "there must be a label for each input"):
        data.from_npz(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as packed:
        packed.writestr("x.npy", bytes(1 << 20))
    for read in (data.from_npz, scan_source):
        with refused(RunError, "compressed in an unusual way: deflate is required"):
            read(path)


def test_looking_at_an_npz_file_takes_no_memory(tmp_path: Path) -> None:
    """A few kilobytes may hold gigabytes of zeros; what is known of the file is the same as after reading it."""
    path, labels = tmp_path / "a.npz", np.arange(400) % 3
    for x in (np.zeros((400, 16, 20), np.uint8), np.zeros((400, 8, 6, 3), np.uint8), np.zeros((400, 3, 4, 4), np.float32)):  # fmt: skip
        np.savez_compressed(path, x_train=x, y_train=labels, x_test=x[:7], y_test=labels[:7])
        read, looked = data.from_npz(path), outline_npz(path)
        assert (looked.train.shape, looked.train.counts()) == (read.train.shape, read.train.counts())
        assert looked.test is not None
        assert len(looked.test) == 7
    np.savez_compressed(path, x=np.zeros((400, 500, 500), np.uint8), y=labels)  # 100 MB
    tracemalloc.start()
    try:
        found = scan_source(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert (found.images, found.sizes, found.classes) == (400, ((500, 500),), {"0": 134, "1": 133, "2": 133})
    np.savez(path, x=np.array([{}], object), y=[0])
    with refused(UserError, "holds pickled Python objects"):
        scan_source(path)


# Datasets that were made and then harmed.


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("dataset.json", b"{", "dataset.json is damaged"),
        ("dataset.json", b"[]", "dataset.json is damaged"),
        ("dataset.json", b"{}", "dataset.json is damaged: KeyError: 'format'"),
        ("train/images.npy", b"", "images.npy is damaged"),
        ("train/images.npy", None, "images.npy cannot be read"),
        ("train/labels.npy", b"\x80\x04N.", "labels.npy is damaged"),
        ("train/images.npy", "short", "images.npy is damaged"),
        ("train/labels.npy", "other", "labels.npy is damaged: its checksum is"),
        ("train/index.npy", b"", "index.npy is damaged: its checksum is"),
        ("train/index.npy", None, "index.npy cannot be read"),
        ("checksums.json", b"[]", "checksums.json is damaged"),
        ("checksums.json", b"[" * 100_000, "checksums.json is damaged: RecursionError"),
        ("checksums.json", None, "checksums.json cannot be read"),
        ("dataset.json", b"[" * 100_000, "dataset.json is damaged: RecursionError"),
    ],
)
def test_damaged_dataset(tmp_path: Path, file: str, content: bytes | str | None, text: str) -> None:
    make_class(tmp_path / "a" / "x", 4)
    data.create(tmp_path / "a", tmp_path / "made", validation=0)
    path = tmp_path / "made" / file
    if content is None:
        path.unlink()
    elif content == "short":
        path.write_bytes(path.read_bytes()[:-10])
    elif content == "other":
        np.save(path, np.array([0, 0, 0, 7]))
    else:
        path.write_bytes(content)
    with refused(RunError, text):
        data.open_dataset(tmp_path / "made")


def test_damaged_lmdb(tmp_path: Path) -> None:
    make_class(tmp_path / "a" / "x", 4)
    for name in ("one", "two"):
        data.create(tmp_path / "a", tmp_path / name, validation=0, store="lmdb")
    (tmp_path / "one" / "train" / "data.mdb").write_bytes(b"no database" * 1000)
    with refused(RunError, "data.mdb is damaged: it is truncated"):
        data.open_dataset(tmp_path / "one")
    (tmp_path / "one" / "train" / "data.mdb").write_bytes(b"no database" * 10000)
    with refused(RunError, "data.mdb is damaged: the checksum of image 0 is wrong"):
        data.open_dataset(tmp_path / "one").train.inputs([0])
    file = tmp_path / "two" / "train" / "data.mdb"
    file.write_bytes(file.read_bytes().replace(b"\x89PNG", b"\x89PNX"))
    with refused(RunError, "data.mdb is damaged: the checksum of image 2 is wrong"):
        data.open_dataset(tmp_path / "two").train.inputs([2])


def test_a_version_of_the_future(tmp_path: Path) -> None:
    make_class(tmp_path / "a" / "x", 4)
    data.create(tmp_path / "a", tmp_path / "made", validation=0)
    file = tmp_path / "made" / "dataset.json"
    file.write_text(file.read_text().replace('"version": 2', '"version": 3'))
    with refused(UserError, "dataset.json has format version 3, this weft reads 2. Create it again"):
        data.open_dataset(tmp_path / "made")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("store", ["arrays", "lmdb"])
def test_a_file_that_is_cut_off_before_or_after_it_is_opened(tmp_path: Path, store: str, when: str) -> None:
    """A mapped file that has lost its end kills whoever touches it: this is done in a process of its own."""
    make_class(tmp_path / "a" / "x", 40)
    data.create(tmp_path / "a", tmp_path / "made", validation=0, store=store, size=(64, 64))
    file = tmp_path / "made" / "train" / ("images.npy" if store == "arrays" else "data.mdb")
    program = (
        "import os, sys, numpy as np; from weft import data; from weft.errors import RunError\n"
        "cut = lambda now: now == sys.argv[3] and os.truncate(sys.argv[2], 5000)\n"
        "try:\n"
        "    cut('before')\n"
        "    d = data.open_dataset(sys.argv[1]).train\n"
        "    cut('after')\n"
        "    d.inputs(np.arange(len(d)))\n"
        "except RunError as error: print(error.message)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "made"), str(file), when]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout[: len(str(file)) + 12]) == (0, f"{file} is damaged:")


def test_pixels_that_changed(tmp_path: Path) -> None:
    make_class(tmp_path / "a" / "x", 4)
    made = data.create(tmp_path / "a", tmp_path / "made", validation=0)
    right = made.train.inputs([0, 1, 2, 3])
    file = tmp_path / "made" / "train" / "images.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    damaged = data.open_dataset(tmp_path / "made").train
    np.testing.assert_array_equal(damaged.inputs([0, 1, 2]), right[:3])
    for read in (
        lambda: damaged.inputs([1, 3]),
        lambda: damaged.x,
        lambda: list(data.Loader(damaged, 4, shuffle=False)),
    ):
        with refused(RunError, f"{file} is damaged: the checksum of image 3 is wrong"):
            read()


def test_equal_images_are_found_in_lmdb(tmp_path: Path) -> None:
    """Where an image lies is found by its bytes, which may occur more than once."""
    for number in range(9):
        (tmp_path / "a" / "x").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 40), ("red", "blue")[number % 4 == 3]).save(tmp_path / "a" / "x" / f"{number}.png")
    made = data.create(tmp_path / "a", tmp_path / "made", validation=0, store="lmdb").train
    assert sorted(made.inputs(np.arange(9))[:, 0, 0, 0].tolist()) == [0, 0] + [255] * 7
