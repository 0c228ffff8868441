"""Checks the command line: how words are read, what verbs do, what scripts can rely on."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft.cli import VERBS, main
from weft.cli.arguments import read
from weft.errors import UserError
from weft.jobs.schema import Setting, flag, number, sizes, whole

KNOWN = {
    "epochs": Setting(whole, 10, ""), "rate": Setting(number, None, ""), "flip": Setting(flag, True, ""), "size": Setting(sizes, None, ""),
    "model": Setting(str, "lenet", ""), "max_seconds": Setting(number, None, ""),
}  # fmt: skip


def test_the_page_of_the_command_line_has_every_verb() -> None:
    page = (Path(__file__).resolve().parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"\n| `{verb}` | " not in page] == []


def test_settings_are_written_in_three_ways(tmp_path: Path) -> None:
    words = read("train", ["mnist", "epochs=3", "--rate", "0.5", "--max-seconds=7", "--flip", "size=8x9"], KNOWN, 1)
    assert words.plain == ("mnist",)
    assert dict(words.settings) == {
        "epochs": 3, "rate": 0.5, "flip": True, "size": (8, 9), "model": "lenet", "max_seconds": 7.0
    }  # fmt: skip
    assert words.given == {"epochs", "rate", "flip", "size", "max_seconds"}


def test_defaults_then_a_file_then_the_command(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('# settings\nepochs: 5\nmodel: "alexnet"\n\nrate: null\nflip: false\n')
    words = read("train", [f"cfg={file}", "epochs=7"], KNOWN, 0)
    assert (words["epochs"], words["model"], words["rate"], words["flip"]) == (7, "alexnet", None, False)


WRONG = {
    "an unknown setting": (["epoch=3"], "there is no setting 'epoch'. Did you mean epochs?"),
    "a setting as others call it": (["max_epochs=3"], "there is no setting 'max_epochs'. Did you mean epochs?"),
    "nothing like it": (["zzz=3"], "there is no setting 'zzz'. Known: cfg, epochs"),
    "no number": (["epochs=many"], "epochs=many cannot be used: it must be a whole number"),
    "below zero": (["epochs=-1"], "epochs=-1 cannot be used: it must be 0 or more"),
    "no flag": (["flip=perhaps"], "flip=perhaps cannot be used: it must be true or false"),
    "no size": (["size=2x3x4"], "size=2x3x4 cannot be used: it must be a size such as 28, or 28x32 (height x width)"),
    "no value": (["--rate"], "--rate needs a value"),
    "too many words": (["a", "b"], "at most 1 word without '=' is understood, got a b"),
    "no file": (["cfg=/nowhere"], "the file /nowhere cannot be read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes(name: str) -> None:
    words, message = WRONG[name]
    with pytest.raises(UserError) as caught:
        read("train", words, KNOWN, 1)
    assert message in caught.value.message


def test_a_file_with_a_mistake_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("epochs: 5\nmodle: x\n")
    with pytest.raises(UserError, match=r"line 2: there is no setting 'modle'. Did you mean model?"):
        read("train", [f"cfg={tmp_path / 'a.yaml'}"], KNOWN, 0)


def test_exit_codes_and_hints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    assert "weft VERB" in capsys.readouterr().out
    for words, message in (
        (["tran"], "there is no verb 'tran'. Did you mean train?"),
        (["train"], "data is required, got none: weft train digits"),
        (["train", "digits", "model=lenett"], "there is no network 'lenett'. Did you mean lenet"),
        (["train", "digitz"], "Did you mean 'digits'?"),
        (["summary"], "a network is required, got none"),
        (["resume", "/nowhere"], "is no folder of a run"),
        (["predict", "/nowhere"], "a run and an image are required"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err


def test_what_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["lenet5", "classification", "1x28x28", "431,080", "2.29M", "0.003"] in lines
    assert main(["models", "json=true"]) == 0
    assert "lenet5" in json.loads(capsys.readouterr().out)
    assert main(["devices", "--json"]) == 0
    assert "cpu" in json.loads(capsys.readouterr().out)["devices"]
    assert main(["summary", "lenet", "channels=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 431_080


def test_from_data_to_a_trained_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits", "model=lenet5_classic", "epochs=2", "flip=no", "augment=light"]) == 0
    said = capsys.readouterr().out
    run = tmp_path / "runs" / "classify" / "digits-lenet5_classic-1"
    assert "epoch 2/2" in said
    assert "weft predict" in said
    assert {p.name for p in run.iterdir()} >= {
        "args.yaml",
        "env.json",
        "metrics.csv",
        "summary.json",
        "weights",
        "state",
    }

    assert main(["resume", str(run), "epochs=5"]) == 0
    assert "epoch 5/5" in capsys.readouterr().out

    assert main(["eval", "digits-lenet5_classic-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.7

    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "digit.png")
    assert main(["predict", str(run), str(tmp_path / "digit.png"), "top=3"]) == 0
    line = capsys.readouterr().out
    assert line.startswith(f"{tmp_path / 'digit.png'}: ")
    assert line.count("%") == 3
    (tmp_path / "broken.png").write_bytes(b"\x89PNG nonsense")
    assert main(["predict", str(run), str(tmp_path / "broken.png")]) == 1
    assert "broken.png" in capsys.readouterr().err
