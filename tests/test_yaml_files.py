"""Checks that people's ordinary YAML files of settings are read, and that mistakes name the line."""

from pathlib import Path

import pytest

from weft.errors import UserError
from weft.jobs.rate_schedules import TAKES
from weft.jobs.schema import described, validated
from weft.jobs.settings import GROUPS, SETTINGS
from weft.jobs.yaml_files import read_settings


def settings(folder: Path, text: str) -> dict[str, object]:
    (folder / "a.yaml").write_text(text)
    return read_settings("weft train", folder / "a.yaml", SETTINGS)


def test_ordinary_yaml(tmp_path: Path) -> None:
    text = """
%YAML 1.1
---
# how I train
epochs: 5          # not many
rate: 1e-3
model: 'lenet5'
name: 007
flip: no
size: [28, 32]
betas:
  - 0.8
  - 0.95
data: >-
  my
  photos
patience: ~
"""
    assert settings(tmp_path, text) == {
        "epochs": 5, "rate": 1e-3, "model": "lenet5", "name": "007", "flip": False, "size": (28, 32), "betas": (0.8, 0.95),
        "data": "my photos", "patience": None,
    }  # fmt: skip
    assert settings(tmp_path, "{epochs: 3, size: 28}") == {"epochs": 3, "size": (28, 28)}
    assert settings(tmp_path, "") == {}
    assert settings(tmp_path, "<<: {epochs: 4}\nseed: 1\n") == {"epochs": 4, "seed": 1}


WRONG = {
    "an unknown setting": ("epochs: 5\nmodle: x\n", "line 2: there is no setting 'modle'. Did you mean model?"),
    "a wrong value": ("\nepochs: many\n", "line 2: epochs=many cannot be used"),
    "a setting twice": ("epochs: 5\nepochs: 6\n", "line 2: each setting is required once, got epochs again"),
    "a mapping": ("epochs: {a: 1}\n", "line 1: epochs requires one value or a list of them, got a mapping"),
    "a list": ("- epochs\n", "lines such as `epochs: 5` are required, got a sequence"),
    "no YAML": ("epochs: [5\nrate: }\n", "line 2: YAML is required"),
    "an object": ("data: !!python/object/apply:os.system [ls]\n", "data=ls"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name: str, tmp_path: Path) -> None:
    text, message = WRONG[name]
    if name == "an object":  # nothing is called: tags of Python mean nothing here
        assert settings(tmp_path, text) == {"data": "ls"}
        return
    with pytest.raises(UserError) as caught:
        settings(tmp_path, text)
    assert message in caught.value.message


def test_the_schema_describes_every_setting() -> None:
    rows = described(SETTINGS)
    assert [row["name"] for row in rows] == list(SETTINGS)
    assert {row["group"] for row in rows} == set(GROUPS)
    assert all(row["help"] and row["type"] for row in rows)
    choices = next(row for row in rows if row["name"] == "schedule")["choices"]
    assert choices == list(TAKES)
    assert choices[:4] == ["one_cycle", "cosine", "linear", "constant"]


def test_values_and_texts_are_validated() -> None:
    found = validated("train", {"epochs": "3", "rate": 0.5, "size": (8, 9), "flip": True, "name": None}, SETTINGS)
    assert (found["epochs"], found["rate"], found["size"], found["flip"], found["name"]) == (3, 0.5, (8, 9), True, None)
    assert found["seed"] == 0
    with pytest.raises(UserError, match="there is no setting 'epoch'. Did you mean epochs?"):
        validated("train", {"epoch": 3}, SETTINGS)
    with pytest.raises(
        UserError, match="schedule=wild cannot be used: it must be one_cycle, cosine, linear, constant, step, "
    ):
        validated("train", {"schedule": "wild"}, SETTINGS)


def test_settings_that_are_merged_may_be_given_again(tmp_path: Path) -> None:
    assert settings(tmp_path, "<<: {epochs: 3, batch: 4}\nepochs: 5\n") == {"epochs": 5, "batch": 4}
    assert settings(tmp_path, "epochs: 5\n<<: [{epochs: 3}, {epochs: 4, batch: 2}]\n") == {"epochs": 5, "batch": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("betas: &a [0.9, *a]\n", "line 1: betas requires one value or a list of them"),
        ("? [a]\n: 1\n", "line 1: the name of a setting is required, got a sequence"),
        ("? {a: b}\n: 1\n", "line 1: the name of a setting is required, got a mapping"),
    ],
)
def test_strange_yaml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(tmp_path, text)
