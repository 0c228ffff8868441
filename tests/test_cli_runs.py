"""Checks `weft runs`: finding runs, the list, one run, runs side by side, and what damage does."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import weft
from weft import data, nn, train
from weft.cli import main
from weft.errors import UserError
from weft.jobs.find import find_run, run_folders


def a_run(
    folder: Path,
    accuracies: Sequence[float] = (),
    *,
    date: str = "2025-01-02T03:04:05+0000",
    ended: str | None = None,
    **settings: Any,
) -> Path:
    """A run folder as training leaves it, with these validation accuracies."""
    folder.mkdir(parents=True)
    known = {"data": "digits", "model": "lenet5", "rate": 0.1, **settings}
    (folder / "args.yaml").write_text("".join(f"{k}: {json.dumps(v)}\n" for k, v in known.items()))
    (folder / "env.json").write_text(json.dumps({"date": date, "python": "3.11.0", "command": ["weft", "train"]}))
    rows = [f"{i + 1},{1 / (i + 1):.4f},{a},{2.0 * (i + 1)}" for i, a in enumerate(accuracies)]
    if rows:
        (folder / "metrics.csv").write_text("\n".join(["epoch,train_loss,validation_accuracy,seconds", *rows]) + "\n")
        over = {} if ended is None else {"ended": ended}
        (folder / "summary.json").write_text(json.dumps({"epochs": len(rows), **over}))
    return folder


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, and the folder they are in."""
    monkeypatch.chdir(tmp_path)
    a_run(tmp_path / "runs/train/first-1", [0.5, 0.75], ended="all epochs are done")
    a_run(tmp_path / "runs/train/second-1", [0.9], date="2025-03-01T00:00:00+0000", ended="the time is over", rate=0.5)
    a_run(tmp_path / "runs/other/deep/third-2", [0.25], date="2025-02-01T00:00:00+0000")
    return tmp_path


def order(out: str) -> list[str]:
    return [one["run"] for one in json.loads(out)]


def test_runs_are_found_four_folders_deep_and_no_deeper(tmp_path: Path) -> None:
    a_run(tmp_path / "a/b/c/d")
    a_run(tmp_path / "a/b/c/e/f")
    a_run(tmp_path / "a/b/c/d/inside a run")
    assert run_folders(tmp_path) == [tmp_path / "a/b/c/d"]
    assert run_folders(tmp_path / "a") == [tmp_path / "a/b/c/d", tmp_path / "a/b/c/e/f"]
    assert run_folders(tmp_path / "nowhere") == []


def test_a_run_is_found_by_folder_name_or_ending(three: Path) -> None:
    assert find_run(str(three / "runs/train/first-1")) == three / "runs/train/first-1"
    for text in ("runs/train/first-1", "first-1", "train/first-1", "irst-1"):
        assert find_run(text) == Path("runs/train/first-1")
    assert find_run("third-2", "runs/other") == Path("runs/other/deep/third-2")


def test_a_whole_name_goes_before_an_ending(three: Path) -> None:
    a_run(three / "runs/train/my-first-1")
    assert find_run("first-1") == Path("runs/train/first-1")


LOST = {
    "two of them": ("-1", "2 runs under runs are called '-1': train/first-1, train/second-1. Use a longer name."),
    "a slip": ("frist-1", "no run under runs has that name. Did you mean first-1?"),
    "a folder without settings": ("runs/train", "is no folder of a run: it has no args.yaml."),
}


@pytest.mark.parametrize("name", LOST)
def test_a_run_that_cannot_be_found(three: Path, name: str) -> None:
    text, message = LOST[name]
    with pytest.raises(UserError) as caught:
        find_run(text)
    assert message in caught.value.message


def test_the_list(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "model", "data", "epochs", "best", "last", "loss", "time", "when", "status"]
    assert lines[2].startswith("train/second-1  ")
    assert lines[2].endswith("stopped: the time is over")
    assert lines[3].endswith("not finished")
    assert lines[4].split()[:9] == ["train/first-1", "lenet5", "digits", "2", "75.00", "%", "0.5", "4", "s"]
    assert lines[4].endswith("done")


SORTED = {
    "new": ["train/second-1", "other/deep/third-2", "train/first-1"],
    "best": ["train/second-1", "train/first-1", "other/deep/third-2"],
    "name": ["other/deep/third-2", "train/first-1", "train/second-1"],
}


@pytest.mark.parametrize("by", SORTED)
def test_the_order_of_the_list(three: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    assert main(["runs", "list", f"sort={by}", "--json"]) == 0
    assert order(capsys.readouterr().out) == SORTED[by]


def test_the_longest_first(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "sort=time", "--json"]) == 0
    assert order(capsys.readouterr().out)[0] == "train/first-1"


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "list"]) == 0
    assert "there are no runs in runs" in capsys.readouterr().out
    assert main(["runs", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["runs", "list", "nowhere"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def test_a_run_that_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    images = data.open_dataset("digits").train
    notes = {"data": "digits", "model": "a line"}
    weft.seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    loader = data.Loader(images, 256, seed=0, drop_last=True)
    train.fit(network, loader, epochs=2, folder="runs/one", notes=notes, prepare=data.ToFloat())
    assert main(["runs", "show", "one", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["args"] == notes
    assert (told["epochs"], told["status"]) == (2, "done")
    assert told["best"]["name"] == "train_accuracy"
    assert [row["epoch"] for row in told["rows"]] == [1, 2]
    assert told["summary"]["best"][told["best"]["name"]] == told["best"]["value"]


def test_one_run(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (three / "runs/train/first-1/report.html").write_text("")
    assert main(["runs", "show", "first-1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "runs/train/first-1: lenet5 on digits\ndone, best validation accuracy 75.00 % at epoch 2, in 4 s,"
    )
    assert "  rate   0.1\n" in said
    assert "  command  weft train\n" in said
    assert "bytes  metrics.csv" in said
    assert said.endswith(f"report: {Path('runs/train/first-1/report.html')}\n")


def test_many_epochs_are_shown_in_twelve_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = [0.5] * 100
    accuracies[56] = 0.75
    assert main(["runs", "show", str(a_run(tmp_path / "long", accuracies))]) == 0
    text = capsys.readouterr().out.split("\nepochs\n")[1].split("\n\n")[0]
    shown = [line.split()[0] for line in text.splitlines()[2:]]
    assert len(shown) == 12
    assert (shown[0], shown[-1]) == ("1", "100")
    (best,) = [line for line in text.splitlines() if line.endswith("*")]
    assert best.split()[0] == "57"


def test_side_by_side(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "compare", "first-1", "second-1", "html=pages/all.html"]) == 0
    said = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "rate 0.1 0.5" in lines
    assert "model" not in said.split("number")[0]
    assert "best validation accuracy 75.00 % 90.00 % *" in lines
    assert "best train loss 0.5 * 1" in lines
    assert "best: second-1, best validation accuracy 90.00 % at epoch 1" in lines
    page = (three / "pages/all.html").read_text("utf-8")
    assert page.count("<svg") == 2  # of the three things, nobody measured the validation loss
    for text in ("Train loss", "Validation accuracy", "first-1", "second-1", "90.00 % *"):
        assert text in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_side_by_side_for_programs(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "compare", "first-1", "second-1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"] == {"rate": [0.1, 0.5]}
    assert told["numbers"]["best validation accuracy"] == [0.75, 0.9]
    assert told["best"] == "second-1"


def test_one_run_cannot_be_compared(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "compare", "first-1", "runs/train/first-1"]) == 2
    assert "two runs or more are required, got 1" in capsys.readouterr().err


def test_runs_of_the_same_name_are_told_apart(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(three / "runs/again/first-1", [0.1])
    assert main(["runs", "compare", "train/first-1", "again/first-1"]) == 0
    assert f"best: {Path('runs/train/first-1')}, " in capsys.readouterr().out


def damage(folder: Path, name: str) -> None:
    if name == "no epochs yet":
        return
    (folder / "metrics.csv").write_text({"empty": "", "nan": "epoch,train_loss\n1,nan\n"}.get(name, "a,b\n1\n\0"))
    (folder / "summary.json").write_text({"empty": "", "nan": '{"ended": 3}'}.get(name, '{"best": ['))
    if name == "all of it":
        for file in ("args.yaml", "env.json"):
            (folder / file).write_bytes(b"\xff\xfe\x00 [[[" * 9)


DAMAGE = {
    "no epochs yet": "no epochs yet",
    "empty": "metrics.csv cannot be read: it is empty",
    "nan": "stopped: 3",
    "all of it": "args.yaml holds no settings",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_runs_are_shown_with_a_note(three: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage(a_run(three / "runs/bad"), name)
    assert main(["runs", "list"]) == 0
    assert DAMAGE[name] in capsys.readouterr().out
    for words in (["show", "bad"], ["compare", "bad", "first-1", "html=a.html"], ["list", "sort=best"]):
        assert main(["runs", *words]) == 0
        capsys.readouterr()
        assert main(["runs", *words, "--json"]) == 0
        json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_csv(three: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def table(*words: str) -> list[dict[str, str]]:
        assert main(["runs", *words, "--csv"]) == 0
        return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    rows = table("list", "sort=name")
    assert [row["run"] for row in rows] == ["other/deep/third-2", "train/first-1", "train/second-1"]
    assert (rows[1]["best_metric"], rows[1]["best"], rows[1]["status"]) == ("validation_accuracy", "0.75", "done")
    epochs = table("show", "first-1")
    assert [row["epoch"] for row in epochs] == ["1", "2"]
    assert [float(row["validation_accuracy"]) for row in epochs] == [0.5, 0.75]
    compared = {row["number"]: (row["first-1"], row["second-1"]) for row in table("compare", "first-1", "second-1")}
    assert compared["best validation accuracy"] == ("0.75", "0.9")
    assert main(["runs", "list", "--csv", "--json"]) == 2
    assert "csv and json exclude each other" in capsys.readouterr().err
