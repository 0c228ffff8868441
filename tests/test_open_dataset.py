"""Checks `open_dataset`: known names, folders and files, and datasets created from image files."""

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data, knobs
from weft.errors import RunError, UserError
from weft.testing import counted, generator


def refused(kind: type[Exception], text: str):
    """The call is rejected with this text, given word for word."""
    counted()
    return pytest.raises(kind, match=re.escape(text))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests run in a folder of their own, and so does the folder for data."""
    monkeypatch.chdir(tmp_path)
    with knobs.set(data=str(tmp_path / "store")):
        yield tmp_path / "store"


def photos(folder: str = "photos", count: int = 4) -> None:
    for kind, level in (("dark", 20), ("light", 220)):
        Path(folder, kind).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (10 + number, 9), (level + number,) * 3).save(Path(folder, kind, f"{number}.png"))


def made(store: Path) -> list[str]:
    """The datasets that were made, without the hidden files beside them."""
    return sorted(p.name for p in (store / "made").iterdir() if not p.name.startswith("."))


# Image files.


def test_image_files_are_made_once(store: Path) -> None:
    photos()
    seen: list[data.Progress] = []
    train, validation, test = data.open_dataset("photos", progress=seen.append)
    assert (train.shape, train.classes, train.name) == ((3, 128, 128), ("dark", "light"), "photos")
    assert (len(train), len(validation), test) == (6, 2, None)
    [name] = made(store)
    assert re.fullmatch("photos-[0-9a-f]{8}", name)
    assert seen[-1] == (8, 8, 0)
    again = data.open_dataset(Path("photos").absolute(), progress=lambda told: pytest.fail("it was made again"))
    np.testing.assert_array_equal(again.train.inputs(slice(None)), train.inputs(slice(None)))
    assert made(store) == [name]


def test_every_setting_makes_a_dataset_of_its_own(store: Path) -> None:
    photos()
    settings = [{}, {"size": (6, 8)}, {"colour": "gray"}, {"validation": 0.5}, {"store": "lmdb", "seed": 3}]
    shapes = [data.open_dataset("photos", **each).train.shape for each in settings]
    assert shapes == [(3, 128, 128), (3, 6, 8), (1, 128, 128), (3, 128, 128), (3, 128, 128)]
    assert len(made(store)) == 5
    # The same, said in another way.
    for each in ({"size": 128}, {"size": (128, 128), "validation": 0.25}, {"workers": 0}, {"colour": None}):
        data.open_dataset("photos", **each)
        counted()
    assert len(made(store)) == 5


def test_image_files_that_have_changed_are_made_again(store: Path) -> None:
    photos()
    assert len(data.open_dataset("photos", size=4, validation=0).train) == 8
    Image.new("RGB", (9, 9)).save("photos/dark/new.png")
    assert len(data.open_dataset("photos", size=4, validation=0).train) == 9
    Image.new("RGB", (9, 9), (255, 0, 0)).save("photos/dark/new.png")
    os.utime("photos/dark/new.png", ns=(1, 1))
    train = data.open_dataset("photos", size=4, validation=0).train
    assert any((image == np.array([255, 0, 0])[:, None, None]).all() for image in train.inputs(slice(None)))
    assert len(made(store)) == 1


def test_folders_of_the_same_name_are_two(store: Path) -> None:
    photos("a/photos", 4)
    photos("b/photos", 5)
    assert [len(data.open_dataset(f"{each}/photos", size=4, validation=0).train) for each in "ab"] == [8, 10]
    assert len(made(store)) == 2


@pytest.mark.parametrize("end", [".csv", ".txt"])
def test_lists_of_image_files(store: Path, end: str) -> None:
    photos()
    between = "," if end == ".csv" else " "
    lines = [f"{path}{between}{path.parent.name}" for path in sorted(Path("photos").glob("*/*.png"))]
    Path("all" + end).write_text("\n" + "\n".join(lines) + "\n")
    train, validation, _ = data.open_dataset("all" + end, size=(5, 5), colour="gray")
    assert (train.shape, len(train), len(validation), train.classes) == ((1, 5, 5), 6, 2, ("dark", "light"))
    assert made(store)[0].startswith("all-")


def test_a_validation_folder_of_its_own() -> None:
    photos("learn", 4)
    photos("check", 3)
    assert [len(part) for part in data.open_dataset("learn", size=4, validation="check")[:2]] == [8, 6]


def test_a_folder_for_data_that_cannot_be_written(tmp_path: Path) -> None:
    photos()
    (tmp_path / "file").touch()
    with knobs.set(data=str(tmp_path / "file")):
        for what in ("photos", "mnist"):
            with refused(RunError, "cannot be written: Not a directory. Set WEFT_DATA to a writable folder."):
                data.open_dataset(what)


# Texts.


def test_a_text_file_is_a_text() -> None:
    Path("poem.txt").write_text("\nso much depends upon\na red wheel barrow\n" * 50)
    train, validation, test = data.open_dataset("poem.txt")
    assert isinstance(train, data.Text)
    assert (train.length, train.name, test) == (64, "poem", None)
    assert train.decode(train.ids) + validation.decode(validation.ids) == Path("poem.txt").read_text()
    assert len(validation.ids) == 205
    assert data.open_dataset("poem.txt", length=8).validation.length == 8
    with refused(UserError, "must be longer than a window of 205 tokens, got a text of 2050. Use a smaller length"):
        data.open_dataset("poem.txt", length=205)


@pytest.mark.parametrize("first", [b"", b"\0 1\n", b"x" * 5000 + b" 1\n", b". 1\n", b"\xff.png 1\n"])
def test_first_lines_that_name_no_file(first: bytes) -> None:
    Path("a.txt").write_bytes(first)
    with refused((UserError, RunError), "[text]"):  # too short for windows, or no UTF-8: in any case no list
        data.open_dataset("a.txt", length=10**6)


# Files of MNIST.


def write_idx(path: Path, values: np.ndarray) -> None:
    path.write_bytes(bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes())


def write_mnist(folder: Path) -> np.ndarray:
    folder.mkdir()
    images = generator("door").integers(0, 256, (6, 4, 5), np.uint8)
    for prefix, labels in (("train", [0, 1, 2, 0, 1, 2]), ("t10k", [0, 4])):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images[: len(labels)])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", np.array(labels, np.uint8))
    return images


def test_a_folder_with_files_of_mnist(tmp_path: Path) -> None:
    images = write_mnist(tmp_path / "letters")
    train, validation, test = data.open_dataset("letters")
    np.testing.assert_array_equal(train.inputs(slice(None)), images[:, None])
    assert (train.name, train.classes, validation) == ("letters", tuple("01234"), None)
    assert (test.classes, test.labels.tolist()) == (tuple("01234"), [0, 4])
    np.testing.assert_allclose(train.mean, [images.mean() / 255])


def test_a_folder_called_fashion_mnist_has_its_classes(tmp_path: Path) -> None:
    write_mnist(tmp_path / "fashion-mnist")
    train = data.open_dataset("./fashion-mnist").train
    assert (train.classes[9], train.mean) == ("ankle boot", (0.2860,))


def test_a_known_set_from_a_folder(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    assert data.open_dataset("./mnist").train.classes == tuple("01234")
    assert data.open_dataset("mnist", from_="mnist").train.classes == tuple("0123456789")
    with refused(
        UserError, "from_ requires the name of a known dataset: one of digits, mnist, fashion-mnist, cifar10, cifar100"
    ):
        data.open_dataset("letters", from_="mnist")


# What is rejected.


def test_what_is_no_data() -> None:
    Path("song.mp3").touch()
    with refused(UserError, "the format must be a folder, .npz, .csv or .txt, got song.mp3"):
        data.open_dataset("song.mp3")
    with refused(UserError, "one of digits, mnist, fashion-mnist, cifar10, cifar100. Did you mean 'mnist'?"):
        data.open_dataset("mnits")
    Path("data", "photos").mkdir(parents=True)
    with refused(UserError, "Did you mean 'data/photos'?"):
        data.open_dataset("data/photo")
    with refused(UserError, "'nowhere/photo' is neither a file, nor a folder"):
        data.open_dataset("nowhere/photo")


def test_settings_that_are_not_known() -> None:
    with refused(UserError, "there is no setting 'colr'. Did you mean colour?"):
        data.open_dataset("digits", colr=None)
    with refused(UserError, "there is no setting 'replace'. Known: colour, "):
        data.open_dataset("digits", replace=True)


def test_settings_that_do_not_belong_to_the_data(tmp_path: Path) -> None:
    photos()
    write_mnist(tmp_path / "letters")
    np.savez("a.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    Path("poem.txt").write_text("so much depends\n" * 100)
    data.create("photos", "packed", size=(4, 4))
    cases = {
        "digits": "digits is a known dataset: size, colour cannot be set for it. These settings apply to image files only.",
        "letters": "letters is a folder of packed data: size, colour cannot be set for it.",
        "packed": "packed is a folder of packed data: size, colour cannot be set for it.",
        "a.npz": "a.npz is a file of arrays: size, colour cannot be set for it.",
        "poem.txt": "poem.txt is a text (its first line names no file): size, colour cannot be set for it.",
    }
    for what, text in cases.items():
        with refused(UserError, text):
            data.open_dataset(what, size=(4, 4), colour="gray")
        data.open_dataset(what, size=None, colour=None)
    for what in ("photos", "digits"):
        with refused(UserError, "length cannot be set for it. Only texts have a length."):
            data.open_dataset(what, length=8)
    with refused(UserError, "validation must be a fraction or a path here, got Index."):
        data.open_dataset("photos", validation=data.from_folders("photos"))
    with refused(UserError, "resize must be one of"):
        data.open_dataset("photos", resize="shrink")
