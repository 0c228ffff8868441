"""Checks annotations of runs: limits, damaged files, changes at the same time, and the commands, settings and index that use them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from studio_tools import make_run
from weft.cli import main
from weft.errors import RunError, UserError
from weft.jobs.annotations import Annotations, annotate, read_annotations
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS
from weft.jobs.sweeps.search_space import expand
from weft.jobs.training import resume, train
from weft.studio.library.runs import RunIndex


def test_what_is_not_given_stays(tmp_path: Path) -> None:
    assert read_annotations(tmp_path) == Annotations()
    annotate(tmp_path, add_tags=["b", "a", "b"], notes="first\ntry")
    annotate(tmp_path, starred=True, group="mine", remove_tags=["b"])
    assert read_annotations(tmp_path) == Annotations(("a",), "first\ntry", "mine", True)
    assert annotate(tmp_path, tags=[], notes="") == Annotations((), "", "mine", True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tags": ["x" * 65]}, "a tag must have 1 to 64 characters"),
        ({"tags": [" a"]}, "a tag must have 1 to 64 characters"),
        ({"add_tags": ["a,b"]}, "without commas, got 'a,b'"),
        ({"add_tags": [f"t{i}" for i in range(51)]}, "at most 50 tags are possible, got 51"),
        ({"notes": "x" * 20_001}, "notes may have up to 20,000 characters, got 20,001"),
        ({"group": "a\nb"}, "group must be printable text"),
    ],
)
def test_limits(tmp_path: Path, change: dict[str, object], message: str) -> None:
    annotate(tmp_path, notes="kept")
    with pytest.raises(UserError, match=message):
        annotate(tmp_path, **change)  # type: ignore[arg-type]
    assert read_annotations(tmp_path) == Annotations(notes="kept")


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"tags": "a"}', '{"tags": [1]}', '{"other": 1}', '{"notes": "' + "x" * 300_000 + '"}']
)
def test_a_damaged_file_is_an_error_that_names_it_and_a_problem_of_the_row(tmp_path: Path, text: str) -> None:
    folder = make_run(tmp_path, "one", [0.5])
    (folder / "annotations.json").write_text(text)
    with pytest.raises(RunError, match=r"annotations\.json cannot be read: .* Delete it"):
        annotate(folder, notes="new")
    index = RunIndex(tmp_path)
    index.refresh()
    (row,) = index.rows()
    assert row.annotations == Annotations()
    assert "annotations.json cannot be read" in row.problems[0]


def test_no_change_gets_lost_when_several_are_made_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: annotate(tmp_path, add_tags=[f"t{i}"]), range(40)))
    assert sorted(read_annotations(tmp_path).tags) == sorted(f"t{i}" for i in range(40))


def test_a_training_writes_them_and_a_resumed_one_keeps_what_people_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"data": "digits", "model": "logistic_regression", "epochs": 1, "tags": "a,b", "group": "g", "notes": "n"}
    folder = train(validated("train", given, SETTINGS))
    assert folder is not None
    assert read_annotations(folder) == Annotations(("a", "b"), "n", "g")
    annotate(folder, tags=["c"])
    resume(folder, {"epochs": 2})
    assert read_annotations(folder) == Annotations(("c",), "n", "g")


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = (make_run(Path("runs"), name, [0.5]) for name in ("one", "two"))
    assert main(["runs", "tag", "one", "baseline", "small", "group=first", "star=true"]) == 0
    assert capsys.readouterr().out == "tags: baseline, small; group: first\n"
    assert main(["runs", "tag", "two", "small"]) == 0
    assert main(["runs", "tag", "one", "remove=small"]) == 0
    assert read_annotations(one) == Annotations(("baseline",), "", "first", True)
    capsys.readouterr()
    for words, names in (
        (["tag=small"], ["two"]),
        (["tag=baseline", "group=first"], ["one"]),
        (["tag=baseline,small"], []),
    ):
        assert main(["runs", "list", "json=true", *words]) == 0
        assert [Path(found["folder"]).name for found in json.loads(capsys.readouterr().out)] == names
    (two / "annotations.json").write_text("{")
    assert main(["runs", "list"]) == 0
    assert "annotations.json cannot be read" in capsys.readouterr().out
    assert main(["runs", "tag"]) == 2


def test_the_index_sees_changes(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "one", [0.5])
    index = RunIndex(tmp_path)
    index.refresh()
    annotate(folder, group="g")
    assert index.refresh()
    (row,) = index.rows()
    assert row.annotations.group == "g"
    assert not [p for p in os.listdir(folder) if p.endswith(".tmp")]


def test_the_trainings_of_a_sweep_form_a_group() -> None:
    assert {one["group"] for one in expand({"data": "a/digits", "rate": "0.1,0.2"})} == {"sweep-digits-rate"}
    assert {one["group"] for one in expand({"data": "digits", "rate": "0.1,0.2", "group": "g"})} == {"g"}
    assert "group" not in expand({"data": "digits", "rate": "0.1"})[0]
