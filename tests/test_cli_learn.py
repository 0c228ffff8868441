"""Checks the verbs that train and use networks, on data of every kind, as people and programs call them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from weft.cli import main
from weft.io import load
from weft.jobs.job import usual_batch

QUICK = ["model=mlp", "epochs=1"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "data"))
    from weft.knobs import knobs

    monkeypatch.setattr(knobs, "data", str(tmp_path / "data"))


def photos(folder: Path, count: int = 24) -> Path:
    """Three kinds of pictures: mostly red, green or blue."""
    draw = np.random.default_rng(5)
    for place, kind in enumerate(("blue", "green", "red")):
        (folder / kind).mkdir(parents=True)
        for i in range(count):
            pixels = draw.integers(0, 120, (30 + i % 7, 36, 3))
            pixels[..., 2 - place] += 110
            Image.fromarray(pixels.astype(np.uint8)).save(folder / kind / f"{i}.jpg")
    return folder


def test_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "photos")
    (tmp_path / "photos" / "red" / "broken.jpg").write_bytes(b"no picture")
    words = [
        "train",
        "data=photos/",
        "model=lenet5_classic",
        "size=28",
        "epochs=6",
        "augment=light",
        "batch=8",
        "seed=1",
    ]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "photos: 54 examples of 3 x 28 x 28, 3 classes -> lenet5_classic" in said
    run = tmp_path / "runs" / "classify" / "photos-lenet5_classic-1"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["validation"]["accuracy"] > 0.9
    assert (run / "report.html").exists()
    assert main(["predict", "photos-lenet5_classic-1", "photos/green/3.jpg", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(iter(found["classes"])) == "green"
    assert abs(sum(found["classes"].values()) - 1.0) < 1e-5

    made = list((tmp_path / "data" / "made").iterdir())
    assert len(made) == 1
    assert "broken.jpg" in (made[0] / "failed.csv").read_text()
    assert main([*words, "epochs=1"]) == 0  # nothing is made again
    assert list((tmp_path / "data" / "made").iterdir()) == made
    assert (tmp_path / "runs" / "classify" / "photos-lenet5_classic-2").exists()


def test_other_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "photos")
    assert main(["train", "digits", "model=lenet5_classic", "epochs=1"]) == 0
    first = tmp_path / "runs" / "classify" / "digits-lenet5_classic-1"
    words = [
        "train",
        "photos",
        "model=lenet5_classic",
        "colour=gray",
        "size=28",
        "epochs=2",
        f"weights={first}",
        "freeze=1",
    ]
    capsys.readouterr()
    assert main(words) == 0
    assert f"8 parameter tensors are initialized from {first}" in capsys.readouterr().out
    second = tmp_path / "runs" / "classify" / "photos-lenet5_classic-1"
    assert main(["resume", str(second), "epochs=3"]) == 0
    assert main(["train", "digits", *QUICK, f"weights={first}"]) == 2
    assert "fits this network" in capsys.readouterr().err


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "song.txt").write_text("row row row your boat\n" * 150)
    assert main(["train", "song.txt", "hidden=32", "layers=1", "epochs=4", "length=32", "rate=0.02", "batch=4"]) == 0
    said = capsys.readouterr().out
    assert " windows of 32 tokens -> " in said
    assert "On 10 validation examples: loss" in said
    run = tmp_path / "runs" / "text" / "song-char_lstm-1"
    text = (run / "text.txt").read_text()
    assert len(text) == 1001
    assert "Generated text" in (run / "report.html").read_text()
    assert main(["predict", str(run), "row", "length=40", "temperature=0"]) == 0
    written = capsys.readouterr().out
    assert "row row your boat" in written
    assert main(["eval", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] < 1.0
    assert main(["predict", str(run), "XYZ"]) == 2
    assert "characters must be in the vocabulary, got 'X', 'Y', 'Z'" in capsys.readouterr().err
    assert main(["train", "song.txt", "model=lenet"]) == 2
    assert "lenet5 is a network for images and numbers" in capsys.readouterr().err
    assert main(["train", "digits", "model=char_lstm"]) == 2
    assert "char_lstm is a network for text" in capsys.readouterr().err


def test_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    np.savez(tmp_path / "line.npz", x=x, y=(x @ np.arange(4.0).astype(np.float32))[:, None])
    assert main(["train", "line.npz", "model=linear_regression", "epochs=30", "rate=0.1"]) == 0
    run = tmp_path / "runs" / "regress" / "line-linear_regression-1"
    said = capsys.readouterr().out
    assert "mae" in said
    assert json.loads((run / "summary.json").read_text())["validation"]["loss"] < 1e-2
    head, *rows = (run / "predictions.csv").read_text().splitlines()
    assert head == "true 0,predicted 0"
    true, found = np.array([[float(v) for v in row.split(",")] for row in rows]).T
    assert np.abs(true - found).max() < 0.3
    assert main(["predict", str(run), "x.png"]) == 2
    assert "predict reads images" in capsys.readouterr().err
    assert main(["train", "line.npz", "model=resnet18"]) == 2
    assert "resnet18 requires images" in capsys.readouterr().err
    assert main(["train", "digits", "model=linear_regression"]) == 2
    assert "use logistic_regression for classes" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["perceptron", "logistic_regression"])
def test_one_layer(model: str, tmp_path: Path) -> None:
    assert main(["train", "digits", f"model={model}", "epochs=8"]) == 0
    summary = json.loads((tmp_path / "runs" / "classify" / f"digits-{model}-1" / "summary.json").read_text())
    assert summary["test"]["accuracy"] > 0.88
    assert summary["parameters"] == 650


def test_what_programs_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=mlp", "epochs=2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["run", "epoch", "epoch", "result"]
    assert lines[0]["folder"] == "runs/classify/digits-mlp-1"
    assert lines[1]["epoch"] == 1
    assert lines[3]["split"] == "test"
    assert (
        lines[3]["accuracy"]
        == json.loads((tmp_path / lines[0]["folder"] / "summary.json").read_text())["test"]["accuracy"]
    )


def test_what_is_auto_becomes_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK, "batch=auto", "rate=auto"]) == 0
    said = capsys.readouterr().out
    assert "batch=64 was chosen" in said
    args = (tmp_path / "runs" / "classify" / "digits-mlp-1" / "args.yaml").read_text().splitlines()
    assert "batch: 64" in args
    rate = next(float(line.split(":")[1]) for line in args if line.startswith("rate:"))
    assert f"rate={rate} is where the loss falls fastest" in said
    assert 1e-5 < rate < 1.0


def test_quick_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=mlp", "fast_dev_run=2"]) == 0
    assert "it works: train loss" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
    assert main(["train", "digits", "model=mlp", "overfit=1", "epochs=40"]) == 0
    said = capsys.readouterr().out
    assert "loss       acc" in said
    assert "epoch 40/40    0.0" in said


def test_the_test_split_decides_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", *QUICK]) == 0
    assert "1,293 examples" in capsys.readouterr().out  # of 1,438: a tenth of each class is held out
    assert main(["eval", "digits-mlp-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == "test"
    assert main(["eval", "digits-mlp-1", "split=validation", "--json"]) == 0
    best = json.loads((tmp_path / "runs" / "classify" / "digits-mlp-1" / "summary.json").read_text())["best"]
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(best["validation_accuracy"])
    assert main(["train", "digits", *QUICK, "validation=0"]) == 0
    assert "1,438 examples" in capsys.readouterr().out
    assert main(["eval", "digits-mlp-2", "split=validation"]) == 2
    assert "there is no validation split; there are test, train" in capsys.readouterr().err


def test_a_batch_is_smaller_where_there_are_few_examples() -> None:
    assert [usual_batch(n) for n in (5, 150, 400, 1293, 54_000)] == [8, 8, 16, 64, 64]


def test_a_run_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=mlp", "max_seconds=0"]) == 0
    assert (
        "before the first epoch was complete; continue with: weft resume runs/classify/digits-mlp-1"
        in capsys.readouterr().out
    )
    assert main(["eval", "digits-mlp-1"]) == 1
    assert "has no weights yet: no epoch was finished" in capsys.readouterr().err
    assert main(["resume", "digits-mlp-1", "epochs=1"]) == 0
    assert "epoch 1/1" in capsys.readouterr().out
    (tmp_path / "runs" / "classify" / "digits-mlp-1" / "state" / "last.safetensors").unlink()
    assert main(["resume", "digits-mlp-1"]) == 1
    assert "has no checkpoint" in capsys.readouterr().err


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    path = os.pathsep.join(sys.path)
    listen = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code = listen + "from weft.cli import main; sys.exit(main(sys.argv[1:]))"

    def weft(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *words]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True)

    def ended(process: subprocess.Popen[str]) -> int:
        process.communicate()
        return process.returncode

    process = weft("train", "digits", "model=mlp", "epochs=2000", "schedule=constant", "seed=3")
    run = tmp_path / "runs" / "classify" / "digits-mlp-1"
    while not (run / "metrics.csv").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130
    assert "stopped; continue with: weft resume runs/classify/digits-mlp-1" in said
    done = len((run / "metrics.csv").read_text().splitlines()) - 1
    wanted = str(done + 2)
    assert ended(weft("resume", str(run), f"epochs={wanted}")) == 0
    again = weft("train", "digits", "model=mlp", f"epochs={wanted}", "schedule=constant", "seed=3", "name=whole")
    assert ended(again) == 0
    values = [load(f / "weights" / "last.safetensors") for f in (run, run.parent / "whole")]
    for name, tensor in values[0].items():
        np.testing.assert_array_equal(tensor.numpy(), values[1][name].numpy())


def test_a_size_that_a_network_is_made_for_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "model=lenet", "epochs=1", "size=20"]) == 0
    assert "lenet5, 131,080 parameters" in capsys.readouterr().out
    for words, message in (
        (["model=lenet", "size=20x24"], "lenet5 takes images of 28 x 28, not of 20 x 24"),
        (["model=alexnet", "size=64"], "alexnet takes images of 224 x 224, not of 64 x 64"),
        (["model=mlp", "batch=0"], "batch=0 cannot be used: it must be 1 or more, or auto"),
        (["model=mlp", "weights=nothing-like-it"], "nothing-like-it is no folder of a run"),
        (["model=mlp", "validation=1.5"], "it must be a fraction from 0 to below 1"),
    ):
        assert main(["train", "digits", *words]) == 2
        assert message in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "runs" / "classify").iterdir()] == ["digits-lenet5-1"]  # nothing half-made


def test_files_that_fail_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos(tmp_path / "photos", 8)
    (tmp_path / "photos" / "red" / "broken.jpg").write_bytes(b"no picture")
    assert main(["train", "photos", "model=mlp", "size=8", "epochs=1"]) == 0
    said = capsys.readouterr().out
    assert "1 file could not be read: see " in said
    assert "failed.csv" in said


def test_a_run_that_python_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from weft import data, train, zoo

    train.fit(zoo.mlp(64, 8, 10), data.open_dataset("digits"), epochs=1, folder=tmp_path / "mine")
    assert main(["eval", str(tmp_path / "mine")]) == 2
    assert "was not made by weft train, or has been changed" in capsys.readouterr().err
    assert main(["runs", "show", str(tmp_path / "mine")]) == 0


def test_data_is_found_again_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "photos", 8)
    assert main(["train", "photos", "model=mlp", "size=8", "epochs=1"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run = str(tmp_path / "runs" / "classify" / "photos-mlp-1")
    capsys.readouterr()
    assert main(["eval", run, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["examples"] == 6
    assert main(["resume", run, "epochs=2"]) == 0


def test_a_network_is_used_without_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path / "photos", 8)
    (tmp_path / "song.txt").write_text("row row row your boat\n" * 200)
    assert main(["train", "photos", "model=mlp", "size=8", "epochs=1"]) == 0
    assert main(["train", "song.txt", "hidden=8", "length=16", "epochs=1"]) == 0
    image = tmp_path / "photos" / "green" / "3.jpg"
    image.rename(tmp_path / "left.jpg")
    shutil.rmtree(tmp_path / "photos")
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "song.txt").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert (
        main(["predict", str(tmp_path / "runs" / "classify" / "photos-mlp-1"), str(tmp_path / "left.jpg"), "--json"])
        == 0
    )
    assert set(json.loads(capsys.readouterr().out)["classes"]) == {"blue", "green", "red"}
    assert main(["predict", str(tmp_path / "runs" / "text" / "song-char_lstm-1"), "row", "length=5"]) == 0
    assert len(capsys.readouterr().out) == len("row") + 5 + 1
    (tmp_path / "runs" / "classify" / "photos-mlp-1" / "data.json").write_text("{")
    assert main(["predict", str(tmp_path / "runs" / "classify" / "photos-mlp-1"), str(tmp_path / "left.jpg")]) == 1
    assert "data.json is damaged" in capsys.readouterr().err
