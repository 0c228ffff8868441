"""Checks `weft dataset`: create, info, list and get, as people and as programs use them."""

import hashlib
import importlib
import json
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data, knobs
from weft.cli import main

catalogue_module = importlib.import_module("weft.data.catalogue")


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests run in a folder of their own, and so does the folder for data."""
    monkeypatch.chdir(tmp_path)
    with knobs.set(data=str(tmp_path / "store")):
        yield tmp_path / "store"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    """Runs a command that goes well; what it printed."""

    def run(*words: str) -> str:
        assert main(["dataset", *words]) == 0
        caught = capsys.readouterr()
        assert caught.err == ""
        return caught.out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]):
    """Runs a command that does not; its exit code and what it said."""

    def run(*words: str) -> tuple[int, str]:
        code = main(["dataset", *words])
        caught = capsys.readouterr()
        assert caught.out == ""
        return code, caught.err.strip()

    return run


def photos(folder: str = "photos", count: int = 8) -> None:
    for kind, level in (("dark", 0), ("light", 255)):
        Path(folder, kind).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (10 + number, 9), (level,) * 3).save(Path(folder, kind, f"{number}.png"))


# The parts.


def test_alone_it_says_what_it_can_do(said) -> None:
    for words in ([], ["help"], ["--help"]):
        text = said(*words)
        assert all(f"weft dataset {name}" in text for name in ("create", "info", "list", "get"))
    assert "resize" in said("create", "--help")


def test_an_unknown_part(refused) -> None:
    code, text = refused("crate", "a", "b")
    assert code == 2
    assert "there is no weft dataset crate. Did you mean create?" in text


# create.


def test_create_says_what_was_made(said) -> None:
    photos()
    Path("photos/dark/broken.png").write_bytes(b"...")
    Path("photos/notes.md").write_text("not in a class")
    text = said("create", "photos", "made", "size=4x6", "validation=0.25", "test=0.25", "colour=gray")
    lines = [line.split() for line in text.splitlines()]
    assert text.startswith("made: inputs of 1 x 4 x 6, uint8\n")
    assert ["class", "train", "validation", "test"] in lines
    splits = data.open_dataset("made")
    assert ["all", "2", *(str(len(part)) for part in splits)] in lines
    assert ["light", "4", "2", "2"] in lines
    assert "bytes on disk, stored as arrays" in text or "kB on disk, stored as arrays" in text
    assert "1 file failed:\n  dark/broken.png: is not an image" in text
    assert "1 file passed over, listed in made/failed.csv" in text
    assert text.endswith("\ntrain on it: weft train data=made\n")
    assert splits.train.shape == (1, 4, 6)


def test_create_passes_every_setting_on(said) -> None:
    photos()
    photos("check", 3)
    settings = (
        "size=5 resize=fill colour=gray validation=check minimum=3 maximum=4 small=drop seed=7 store=lmdb encoding=jpeg"
    )
    found = json.loads(said("create", "photos", "made here", *settings.split(), "workers=0", "--json"))
    made = json.loads(Path("made here/dataset.json").read_text())["settings"]
    assert made == {
        "size": [5, 5], "fixed": False, "resize": "fill", "colour": "gray", "store": "lmdb", "encoding": "jpeg", "seed": 7,
        "minimum": 3, "maximum": 4, "small": "drop", "validation": "check", "test": 0.0,
    }  # fmt: skip
    assert found["splits"] == {"train": 8, "validation": 6}
    assert found["classes"] == {name: {"train": 4, "validation": 3} for name in ("dark", "light")}
    assert (found["store"], found["failed"], found["passed_over"], found["folder"]) == ("lmdb", 0, 8, "made here")
    assert found["bytes"] == sum(file.stat().st_size for file in Path("made here").rglob("*") if file.is_file())
    assert "weft train data='made here'" in said("create", "photos", "made here", *settings.split())


def test_many_failures_are_cut_short(said) -> None:
    photos(count=10)
    for number in range(13):
        Path(f"photos/dark/x{number}").write_bytes(b"...")
    text = said("create", "photos", "made", "size=4")
    assert text.count("is not an image") == 10
    assert "13 files failed:" in text
    assert "  and 3 more, in made/failed.csv" in text


def test_odd_names_are_shown_in_one_line(said) -> None:
    photos(count=4)
    Path("photos/dark/a\x1b[31m\nb").write_bytes(b"...")
    text = said("create", "photos", "made", "size=4")
    assert "  dark/a\\x1b[31m\\nb: is not an image" in text


def test_a_dataset_is_replaced_only_if_asked(said, refused) -> None:
    photos()
    said("create", "photos", "made", "size=4")
    code, text = refused("create", "photos", "made", "size=5")
    assert code == 2
    assert "is a dataset with other settings or files" in text
    assert "inputs of 3 x 5 x 5" in said("create", "photos", "made", "size=5", "replace=yes")


def test_lists_may_lead_outside_if_asked(said, refused, tmp_path: Path) -> None:
    photos()
    Path("lists").mkdir()
    lines = [f"{path},{path.parent.name}" for path in sorted(tmp_path.glob("photos/*/*.png"))]
    Path("lists/all.csv").write_text("\n".join(lines))
    code, text = refused("create", "lists/all.csv", "made", "size=4")
    assert code == 2
    assert "outside=True to allow it" in text
    assert "train on it" in said("create", "lists/all.csv", "made", "size=4", "outside=True")


WRONG_CREATE = {
    "no folder": (["photos"], "a source and a folder are required"),
    "no source": (["nowhere", "made"], "there is no folder or list nowhere."),
    "a setting": (["photos", "made", "sise=4"], "there is no setting 'sise'. Did you mean size?"),
    "a size": (["photos", "made", "size=big"], "size=big cannot be used"),
    "a choice": (["photos", "made", "resize=shrink"], "it must be squash, crop, fill or half_crop_half_fill."),
    "a share": (["photos", "made", "validation=1.5"], "it must be a fraction from 0 to below 1, or a path."),
    "all for others": (["photos", "made", "validation=0.6", "test=0.6"], "must leave files for training"),
}


@pytest.mark.parametrize("name", WRONG_CREATE)
def test_commands_that_cannot_create(refused, name: str) -> None:
    photos()
    words, message = WRONG_CREATE[name]
    code, text = refused("create", *words)
    assert code == 2
    assert message in text
    assert not Path("made").exists()


# info.


def test_info_of_the_digits(said) -> None:
    found = json.loads(said("info", "digits", "--json"))
    assert found["splits"] == {"train": 1438, "test": 359}
    assert (found["shape"], found["dtype"], found["name"]) == ([1, 8, 8], "float32", "digits")
    assert sum(counts["train"] for counts in found["classes"].values()) == 1438
    train = data.known("digits").train
    assert (found["mean"], found["std"]) == (list(train.mean), list(train.std))
    text = said("info", "digits")
    assert f"mean  {train.mean[0]:.4f}\nstd   {train.std[0]:.4f}" in text
    assert ["0", "142", "36"] in [line.split() for line in text.splitlines()]


def test_info_of_a_made_dataset_says_what_create_said(said) -> None:
    photos()
    Path("photos/dark/broken.png").write_bytes(b"...")
    made = said("create", "photos", "made", "size=4")
    assert made == said("info", "made") + "\ntrain on it: weft train data=made\n"
    Path("made/failed.csv").unlink()
    assert "and 1 more, in made/failed.csv" in said("info", "made")


def test_info_of_image_files_packs_nothing(said, store: Path) -> None:
    photos("whole", 3)
    photos("parts/train", 4)
    photos("parts/val", 2)
    found = json.loads(said("info", "whole", "--json"))
    assert (found["splits"], found["packed"], found["name"]) == ({"files": 6}, False, "whole")
    assert "image files, not packed yet" in said("info", "whole")
    assert json.loads(said("info", "parts", "--json"))["splits"] == {"train": 8, "validation": 4}
    assert not store.exists()


def test_info_of_data_without_classes(said) -> None:
    np.savez("line.npz", x=np.zeros((5, 2), np.float32), y=np.linspace(0, 1, 5))
    found = json.loads(said("info", "line.npz", "--json"))
    assert (found["classes"], found["mean"], found["splits"]) == ({}, None, {"train": 5})
    assert said("info", "line.npz") == "line.npz: inputs of 2, float32\n\ntrain\n-----\n    5\n"
    Path("poem.txt").write_text("abcdefghij" * 100)
    assert "a text of 10 different characters" in said("info", "poem.txt")


def test_info_cuts_many_classes_short(said) -> None:
    np.savez("many.npz", x=np.zeros((60, 2)), y=np.arange(60))
    lines = [line.split() for line in said("info", "many.npz").splitlines()]
    assert ["49", "1"] in lines
    assert ["50", "1"] not in lines
    assert ["and", "10", "more"] in lines
    assert ["all", "60", "60"] in lines
    assert len(json.loads(said("info", "many.npz", "--json"))["classes"]) == 60


def test_info_of_nothing(refused) -> None:
    assert refused("info")[0] == 2
    code, text = refused("info", "mnits")
    assert (code, "Did you mean 'mnist'?" in text) == (2, True)


# list and get.


def write_mnist(folder: Path) -> dict[str, str]:
    """The four files of a small MNIST; their checksums."""
    folder.mkdir()
    for prefix, labels in (("train", [0, 1, 2, 0, 1, 2]), ("t10k", [0, 1])):
        for kind, values in (
            ("images-idx3", np.zeros((len(labels), 4, 5), np.uint8)),
            ("labels-idx1", np.array(labels, np.uint8)),
        ):
            head = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            (folder / f"{prefix}-{kind}-ubyte.gz").write_bytes(head + values.tobytes())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small MNIST, whose files weft takes for the originals. Nothing can be downloaded."""
    files = write_mnist(tmp_path / "files")
    about = replace(catalogue_module.CATALOGUE["mnist"], files=files, addresses=("http://127.0.0.1:1/",))
    monkeypatch.setitem(catalogue_module.CATALOGUE, "mnist", about)
    monkeypatch.setattr("weft.data.download.pause", lambda seconds: None)
    return tmp_path / "files"


def test_get_from_a_folder_once_and_for_all(said, store: Path, small_mnist: Path) -> None:
    assert "mnist          not here; weft dataset get mnist" in said("list")
    text = said("get", "mnist", f"from={small_mnist}")
    assert text.endswith(f"mnist is in {store / 'mnist'}; train on it: weft train mnist\n")
    assert sorted(p.name for p in (store / "mnist").iterdir()) == sorted(p.name for p in small_mnist.iterdir())
    assert "mnist          here" in said("list")
    assert json.loads(said("list", "--json"))["known"] == {
        "digits": True, "mnist": True, "fashion-mnist": False, "cifar10": False, "cifar100": False
    }  # fmt: skip
    assert len(data.open_dataset("mnist").train) == 6
    assert json.loads(said("get", "mnist", "--json"))["splits"] == {"train": 6, "test": 2}, "it is here already"


def test_get_of_files_that_are_unpacked_already(said, store: Path, small_mnist: Path) -> None:
    for file in small_mnist.iterdir():
        file.rename(file.with_suffix(""))
    said("get", "mnist", f"from={small_mnist}")
    assert (store / "mnist" / "train-images-idx3-ubyte").is_file()
    assert len(data.open_dataset("mnist").test) == 2


def test_get_of_cifar_unpacked(said, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cifar"
    folder.mkdir()
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(bytes([3]) + bytes(3072))
    assert json.loads(said("get", "cifar10", f"from={folder}", "--json"))["splits"] == {"train": 5, "test": 1}
    assert json.loads(said("list", "--json"))["known"]["cifar10"]
    (store / "cifar10" / "test_batch.bin").unlink()
    assert not json.loads(said("list", "--json"))["known"]["cifar10"]


def test_get_refuses_what_is_not_the_original(refused, store: Path, small_mnist: Path) -> None:
    file = small_mnist / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-1] + b"\2")
    code, text = refused("get", "mnist", f"from={small_mnist}")
    assert code == 1
    assert "t10k-labels-idx1-ubyte.gz is not the original of mnist: its checksum is wrong" in text
    file.unlink()
    code, text = refused("get", "mnist", f"from={small_mnist}")
    assert code == 2
    assert "lacks t10k-labels-idx1-ubyte.gz" in text
    assert not store.exists()


def test_get_without_network(refused, small_mnist: Path) -> None:
    code, text = refused("get", "mnist")
    assert code == 1
    assert "weft dataset get NAME from=FOLDER" in text


def test_get_where_nothing_can_be_written(refused, small_mnist: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with knobs.set(data=str(tmp_path / "file")):
        for words in (["get", "mnist", f"from={small_mnist}"], ["get", "mnist"]):
            code, text = refused(*words)
            assert code == 1
            assert "Set WEFT_DATA to a writable folder." in text


def test_get_of_names(said, refused) -> None:
    assert said("get", "digits").endswith("\ndigits is built in; train on it: weft train digits\n")
    assert refused("get")[0] == 2
    code, text = refused("get", "fashion-mnits")
    assert (code, "Did you mean fashion-mnist?" in text) == (2, True)
    code, text = refused("get", "mnist", "from=nowhere")
    assert (code, "nowhere is not a folder with the files of mnist" in text) == (2, True)


def test_list_names_what_was_made_on_the_way(said, store: Path) -> None:
    assert json.loads(said("list", "--json"))["made"] == []
    photos()
    data.open_dataset("photos", size=(4, 6))
    data.open_dataset("photos", size=(5, 5))
    small, other = sorted((store / "made").glob("photos-*"), key=lambda folder: data.describe(folder)["shape"])
    (other / "dataset.json").write_text("{}")
    found = {row["name"]: row for row in json.loads(said("list", "--json"))["made"]}
    assert set(found) == {small.name, other.name}
    row = found[small.name]
    assert (row["splits"], row["classes"], row["shape"]) == ({"train": 12, "validation": 4}, 2, [3, 4, 6])
    assert "is damaged" in found[other.name]["problem"]
    lines = [line.split() for line in said("list").splitlines()]
    assert [small.name, "16", "2", "3x4x6"] in [line[:4] for line in lines]


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    photos()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["dataset", "create", "photos", "made", "size=4"]) == 0
    drawn = capsys.readouterr().err
    assert "making made" in drawn
    assert "100 %" in drawn
    assert drawn.rstrip().endswith("\x1b[2K\x1b[?25h")
