"""Folders and lists of images with damaged files, odd names and hostile paths: everything is accounted for."""

import os
import resource
import sys
from pathlib import Path

import pytest
from PIL import Image

from hostile_tools import NOISE, encoded, failures, make_class, refused
from weft import data
from weft.errors import RunError, UserError
from weft.testing import counted


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
