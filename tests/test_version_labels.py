"""Versions of datasets whose images have several classes, or numbers: what can be changed, and what is rejected."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft import data
from weft.cli import main
from weft.data.label_kinds import LabelKind, label_list, named
from weft.data.versions import DatasetChanges, history, new_version
from weft.errors import UserError
from weft.jobs.datasets.versions import make_version

Row = Sequence[str]


def write_list(folder: Path, label_of: Callable[[int], Row], count: int, start: int = 0) -> Path:
    """Images of one grey, their number, and a list of them."""
    folder.mkdir(parents=True)
    with (folder / "list.csv").open("w", newline="") as file:
        for number in range(start, start + count):
            Image.new("L", (4, 4), number).save(folder / f"{number}.png")
            csv.writer(file).writerow([f"{number}.png", *label_of(number)])
    return folder / "list.csv"


def classes_of(number: int) -> Row:
    return [";".join(name for name, step in (("even", 2), ("three", 3), ("five", 5)) if number % step == 0)]


def numbers_of(number: int) -> Row:
    return [str(number / 2), str(-number)]


@pytest.fixture
def make(tmp_path: Path) -> Callable[[LabelKind], Path]:
    def made(kind: LabelKind) -> Path:
        source = write_list(tmp_path / "source", classes_of if kind == "classes" else numbers_of, 24)
        data.create(source, tmp_path / "set" / "v1", labels=kind, validation=0.25, workers=0)
        return tmp_path / "set" / "v1"

    return made


def content(folder: Path) -> dict[str, dict[int, tuple[object, ...]]]:
    """The label of each image, by split and grey."""
    about = data.describe(folder)
    found = {}
    for split, part in data.open_dataset(folder)._asdict().items():
        if part is not None:
            greys = part.inputs(slice(None))[:, 0, 0, 0].tolist()
            labels = named(label_list(part.labels), about["labels"], part.classes)
            found[split] = dict(zip(greys, labels, strict=True))
            assert about["examples"][split] == len(greys)
    return found


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_images_are_removed_moved_and_added(make: Callable[[LabelKind], Path], tmp_path: Path, kind: LabelKind) -> None:
    first = make(kind)
    old, label_of = content(first), classes_of if kind == "classes" else numbers_of
    more = write_list(tmp_path / "more", label_of, 8, start=100)
    changes = DatasetChanges(remove={"train": [0]}, move={"train": {1: "validation"}}, add=str(more))
    second = new_version(first, changes, workers=0)
    new, expected = content(second), {split: dict(rows) for split, rows in old.items()}
    gone, moved = list(old["train"])[:2]
    del expected["train"][gone]
    expected["validation"][moved] = expected["train"].pop(moved)
    added = {grey: label for rows in new.values() for grey, label in rows.items() if grey >= 100}
    for rows in new.values():
        for grey in [grey for grey in rows if grey >= 100]:
            del rows[grey]
    assert new == expected
    text = {grey: label_of(grey) for grey in range(100, 108)}
    wanted = {
        grey: tuple(part for part in row[0].split(";") if part) if kind == "classes" else tuple(map(float, row))
        for grey, row in text.items()
    }
    assert {grey: set(label) for grey, label in added.items()} == {grey: set(label) for grey, label in wanted.items()}
    assert data.open_dataset(second).train.labels.dtype == data.open_dataset(first).train.labels.dtype
    assert history(second)[0].text == "removed 1 image, moved 1 image, added list.csv"


def test_several_classes_are_renamed_merged_and_relabelled(make: Callable[[LabelKind], Path]) -> None:
    first = make("classes")
    old = content(first)
    row, grey = next((i, grey) for i, grey in enumerate(old["train"]) if old["train"][grey] == ("even",))
    changes = DatasetChanges(rename={"even": "low", "three": "low"}, relabel={"train": {row: "five; new"}})
    new = content(new_version(first, changes))
    assert new["train"][grey] == ("five", "new")
    names = {"even": "low", "three": "low", "five": "five"}
    for split, rows in old.items():
        for other, label in rows.items():
            if other != grey:
                assert set(new[split][other]) == {names[str(name)] for name in label}
    assert data.describe(first.with_name("v2"))["classes"] == ["low", "five", "new"]


def test_numbers_are_corrected(make: Callable[[LabelKind], Path]) -> None:
    first = make("numbers")
    grey = next(iter(content(first)["train"]))
    second = new_version(first, DatasetChanges(relabel={"train": {0: "7.5;-1e3"}}))
    assert content(second)["train"][grey] == (7.5, -1000.0)
    assert data.describe(second)["counts"] == {"train": {}, "validation": {}}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("numbers", {"rename": {"a": "b"}}, "rename needs a dataset with classes, got one whose labels are numbers"),
        ("numbers", {"relabel": {"train": {"0": "cat"}}}, "relabel needs numbers, with ; between several, got 'cat'"),
        ("numbers", {"relabel": {"train": {"0": "nan;1"}}}, "relabel needs numbers, with ; between several, got 'nan;1'"),
        ("numbers", {"relabel": {"train": {"0": ""}}}, "relabel needs numbers, with ; between several, got ''"),
        ("numbers", {"relabel": {"train": {"0": "3"}}}, "relabel needs labels of 2 numbers as the dataset has them, got 1"),
        ("numbers", {"remove": {"train": list(range(18))}}, "at least one image must remain for training"),
        ("classes", {"relabel": {"train": {"0": "a\tb"}}}, "relabel needs the name of a class"),
        ("classes", {"rename": {"odd": "b"}}, "there is no class 'odd' to rename"),
        ("classes", {"remove": {"train": list(range(18))}}, "at least one image must remain for training"),
        ("classes", {"add": "."}, "add must be a .csv or .txt list of files for a dataset with labels=classes"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_are_refused(
    make: Callable[[LabelKind], Path], kind: LabelKind, changes: object, message: str
) -> None:
    first = make(kind)
    with pytest.raises(UserError) as refused:
        new_version(first, DatasetChanges.from_json(changes))
    assert message in str(refused.value)
    assert not first.with_name("v2").exists()


def test_a_class_that_training_would_lose_is_named(make: Callable[[LabelKind], Path]) -> None:
    first = make("classes")
    rows = [i for i, label in enumerate(content(first)["train"].values()) if "five" in label]
    with pytest.raises(UserError, match="each class needs an image in train, the changes leave none of five"):
        new_version(first, DatasetChanges(remove={"train": rows}))


def test_numbers_of_another_length_are_not_added(make: Callable[[LabelKind], Path], tmp_path: Path) -> None:
    more = write_list(tmp_path / "more", lambda number: [str(number)], 4)
    with pytest.raises(UserError, match="add needs labels of 2 numbers as the dataset has them, got 1"):
        new_version(make("numbers"), DatasetChanges(add=str(more)))


def test_the_job_and_the_command(make: Callable[[LabelKind], Path], tmp_path: Path) -> None:
    first = make("numbers")
    make_version({"folder": str(first), "changes": {"remove": {"train": [0, 1]}}}, None, lambda event: None)
    (tmp_path / "changes.json").write_text(json.dumps({"remove": {"validation": [0]}}))
    assert main(["dataset", "change", str(first.with_name("v2")), f"changes={tmp_path / 'changes.json'}"]) == 0
    assert {split: len(rows) for split, rows in content(first.with_name("v3")).items()} == {
        "train": 16,
        "validation": 5,
    }
    assert np.issubdtype(data.open_dataset(first.with_name("v3")).train.labels.dtype, np.floating)
