"""Damaged and hostile idx, CIFAR and npz files, and datasets that were damaged after they were made."""

import gzip
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hostile_tools import make_class, refused
from weft import data
from weft.data.npz import outline_npz
from weft.data.scan import scan_source
from weft.errors import RunError, UserError

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
