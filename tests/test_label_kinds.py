"""Image lists with several classes or numbers a file: from the list to a trained and evaluated network."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data
from weft.cli import main
from weft.data.image_files import write_image_files
from weft.data.label_kinds import kind_of, label_array, label_list
from weft.errors import UserError


def make_list(folder: Path, rows: list[list[str]], name: str = "list.csv") -> Path:
    """Image files whose brightness says the first number, or which corners are bright which classes; and a list of them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / name


def several(folder: Path, count: int = 48) -> Path:
    folder.mkdir()
    rows = [["path", "labels"]]
    for number in range(count):
        left, right = number % 2 == 0, number % 3 == 0
        pixels = np.zeros((8, 8), np.uint8)
        pixels[:, :4] = 255 * left
        pixels[:, 4:] = 255 * right
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append([f"{number}.png", ";".join(["left"] * left + ["right"] * right)])
    return make_list(folder, rows)


def test_several_classes_are_read_split_and_stored(tmp_path: Path) -> None:
    index = data.from_list(several(tmp_path / "s"), labels="classes")
    assert index.classes == ("left", "right")
    assert index.labels.dtype == bool
    assert index.counts() == {"left": 24, "right": 16}
    train, validation, _ = data.create(
        tmp_path / "s" / "list.csv", tmp_path / "made", labels="classes", validation=0.25
    )
    assert validation is not None
    assert (len(train), len(validation), kind_of(train.labels)) == (36, 12, "classes")
    about = data.describe(tmp_path / "made")
    assert about["examples"] == {"train": 36, "validation": 12}
    assert sum(part.counts()["left"] for part in (train, validation)) == 24
    pixels = train.inputs(slice(None))
    assert ((pixels[:, 0, 0, 0] > 0) == train.labels[:, 0]).all()
    assert ((pixels[:, 0, 0, 7] > 0) == train.labels[:, 1]).all()


def test_several_classes_are_learned_and_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    several(tmp_path / "s")
    main(["dataset", "create", "s/list.csv", "made", "labels=classes", "colour=gray"])
    assert main(["train", "data=made", "model=mlp", "epochs=8", "rate=0.01", "name=two"]) == 0
    run = tmp_path / "runs" / "classify" / "two"
    found = json.loads((run / "summary.json").read_text())
    assert found["best"]["validation_f1"] == 1.0
    with (run / "classes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["left", "right"]
    assert all(float(row["f1"]) == 1.0 for row in rows)
    capsys.readouterr()
    assert main(["predict", "two", "s/0.png", "s/1.png", "--json"]) == 0
    both, none = (json.loads(line)["classes"] for line in capsys.readouterr().out.splitlines())
    assert min(both.values()) > 0.5 > max(none.values())  # each class by itself, not shares of one
    assert main(["eval", "two"]) == 0


def numbers(folder: Path, count: int = 40) -> Path:
    folder.mkdir()
    for number in range(count):
        Image.fromarray(np.full((8, 8), 6 * number, np.uint8)).save(folder / f"{number}.png")
    rows = [[f"{n}.png", str(6 * n / 255), str(1 - 6 * n / 255)] for n in range(count)]
    return make_list(folder, [["path", "light", "dark"], *rows])


def test_numbers_are_read_stored_and_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train, _, _ = data.create(numbers(tmp_path / "n"), "made", labels="numbers", colour="gray", validation=0.2)
    assert (train.labels.shape, train.labels.dtype, train.classes) == ((32, 2), np.float32, ())
    assert np.allclose(train.labels[:, 0], train.inputs(slice(None))[:, 0, 0, 0] / 255)
    assert (
        main(
            ["train", "data=n/list.csv", "labels=numbers", "colour=gray", "size=8", "model=mlp", "epochs=10", "name=n"]
        )
        == 0
    )
    found = json.loads((tmp_path / "runs" / "regress" / "n" / "summary.json").read_text())
    assert found["best"]["validation_mae"] < 0.15


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([["a.png", "1", "2"]], "class", 'labels="numbers"'),
        ([["a.png", "1", "2"], ["b.png", "1"]], "numbers", "line 2: 2 finite numbers as in line 1 required, got 1"),
        ([["a.png", "1"], ["b.png", "nan"]], "numbers", "line 2: 1 finite number"),
        ([["a.png", ""], ["b.png", ""]], "classes", "names no classes"),
        ([["a.png", "x"]], "colours", "labels must be one of class, classes, numbers"),
    ],
)
def test_wrong_lists_are_refused_by_line(tmp_path: Path, rows: list[list[str]], kind: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        data.from_list(make_list(tmp_path, rows), labels=kind)  # type: ignore[arg-type]


def test_text_lists_have_several_numbers_or_classes(tmp_path: Path) -> None:
    (tmp_path / "n.txt").write_text("a b.png 0.5 -1e3\nc.png 2 3\n")
    index = data.from_list(tmp_path / "n.txt", labels="numbers")
    assert (index.names, index.labels.tolist()) == (("a b.png", "c.png"), [[0.5, -1000.0], [2.0, 3.0]])
    (tmp_path / "c.txt").write_text("a.png cat;dog\nb.png dog\n")
    assert data.from_list(tmp_path / "c.txt", labels="classes").counts() == {"cat": 1, "dog": 2}


def test_labels_keep_their_kind(tmp_path: Path) -> None:
    for labels in (np.array([1, 0]), np.array([[True, False], [False, False]]), np.array([[0.5, 2.0]], np.float32)):
        kind = kind_of(labels)
        assert (label_array(label_list(labels), kind, 2) == labels).all()
    with pytest.raises(UserError, match="folder"):
        data.create(tmp_path, tmp_path / "made", labels="classes")
    with pytest.raises(UserError, match="2 different class names"):
        data.Arrays(np.zeros((1, 1, 2, 2)), np.zeros((1, 2), bool), ["a"])


def test_datasets_are_written_as_files_that_make_the_same_dataset(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (6, 1, 5, 5)).astype(np.uint8)
    for name, labels, classes in (
        ("class", np.arange(6) % 2, ["a/b", "c"]),
        ("classes", np.arange(12).reshape(6, 2) % 3 == 0, ["p", "q"]),
        ("numbers", np.arange(6, dtype=np.float32), None),
    ):
        given = data.Splits(data.Arrays(x, labels, classes, name))
        found = write_image_files(given, tmp_path / name)["train"]
        made = data.create(found, tmp_path / f"{name}-made", labels=name, colour="gray", validation=0.0)  # type: ignore[arg-type]
        order = [int(Path(line).stem) for line in (tmp_path / f"{name}-made/train/names.txt").read_text().splitlines()]
        assert (made.train.inputs(slice(None)) == x[order]).all()
        assert (made.train.labels == labels[order]).all()
