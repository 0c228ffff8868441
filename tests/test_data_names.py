"""Checks that the name of a known dataset comes before a file or folder of that name, which is written ./NAME."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from weft import data
from weft.cli import main
from weft.data import open as open_module
from weft.data.open import data_path, same_name_note
from weft.errors import RunError, UserError
from weft.jobs import JobQueue
from weft.jobs.datasets.create import checked_dataset_settings, is_arrays
from weft.jobs.job import job_of
from weft.jobs.schema import validated
from weft.jobs.settings import SETTINGS

NOTE = "digits is the dataset that weft knows by that name; the folder is ./digits"


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the name of a known dataset."""
    monkeypatch.chdir(tmp_path)
    for name in ("red", "blue"):
        (tmp_path / "digits" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8), name).save(tmp_path / "digits" / name / f"{number}.png")
    return tmp_path / "digits"


def test_a_known_name_comes_first_and_a_path_is_written_as_one(photos: Path) -> None:
    assert len(data.open_dataset("digits").train.classes) == 10
    for path in ("./digits", "digits/", photos, Path("digits")):
        assert data.open_dataset(path, size=8).train.classes == ("blue", "red")
    assert (data_path("digits"), data_path("./digits")) == (None, Path("digits"))
    assert (same_name_note("digits"), same_name_note("./digits"), same_name_note("mnist")) == (NOTE, "", "")
    with pytest.raises(UserError, match=f"digits is a known dataset: size cannot be set for it. .* {NOTE}"):
        data.open_dataset("digits", size=8)


def test_a_download_that_fails_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mnist").mkdir()

    def offline(name: str, **more: object) -> None:
        raise RunError("download", "x could not be downloaded.")

    monkeypatch.setattr(open_module, "known", offline)
    with pytest.raises(RunError, match=r"x could not be downloaded. mnist is the dataset .*; the folder is ./mnist\."):
        data.open_dataset("mnist")


def test_jobs_and_commands_do_the_same_and_say_so(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of("train", validated("train", {"data": "digits", "model": "mlp"}, SETTINGS))
    assert (len(job.train.classes), NOTE in job.notes) == (10, True)
    assert main(["dataset", "info", "digits"]) == 0
    shown = capsys.readouterr()
    assert NOTE in shown.err
    assert "blue" not in shown.out
    assert main(["dataset", "info", "./digits"]) == 0
    assert "blue" in capsys.readouterr().out


def test_new_datasets_too(photos: Path, tmp_path: Path) -> None:
    assert (is_arrays("digits"), is_arrays("./digits")) == (True, False)
    made = [
        checked_dataset_settings({"source": one, "folder": str(tmp_path / "new")})["source"]
        for one in ("digits", "./digits")
    ]
    assert made == ["digits", str(photos)]
    assert JobQueue(tmp_path).jobs() == []
