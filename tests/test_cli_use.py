"""Checks what is done with trained networks on the command line: many images, other data, runs that were stopped early, and how it reads."""

import contextlib
import csv
import importlib
import io
import json
import os
import re
import tomllib
from html import unescape
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from PIL import Image

import weft
from test_cli_settings import photos
from weft.cli import main
from weft.compiler.cpu import engine
from weft.data import Arrays, Text
from weft.errors import UserError
from weft.io import load
from weft.jobs.evaluation_data import as_learned
from weft.jobs.prediction.find import find_predictor
from weft.jobs.settings import SETTINGS
from weft.jobs.writers import find_writer
from weft.knobs import knobs
from weft.report.text_format import counted, listed
from weft.zoo.gpt import Positions


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on photos, runs/classify/colours, which were squashed to 8 x 8."""
    folder = tmp_path_factory.mktemp("home")
    photos(folder / "photos", ("blue", "green", "red"), 8)
    before = os.getcwd()
    os.chdir(folder)
    try:
        words = ["train", "photos", "model=logistic_regression", "size=8", "epochs=12", "rate=0.05", "name=colours"]
        with knob_data(folder):
            assert main(words) == 0
    finally:
        os.chdir(before)
    return folder


@contextlib.contextmanager
def knob_data(folder: Path):  # type: ignore[no-untyped-def]
    from weft.knobs import knobs

    with knobs.set(data=str(folder / "data")):
        yield


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(home)
    with knob_data(home):
        yield home


def said(*words: str, code: int = 0) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(list(words)) == code, err.getvalue()
    return out.getvalue(), err.getvalue()


# --- export ---------------------------------------------------------------------------------------------------------------------


def test_an_exported_run_predicts_as_the_run_and_needs_nothing_else(
    at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [str(at_home / f"photos/{c}/{i}.png") for c in ("blue", "red") for i in range(2)]
    expected = said("predict", "colours", *images, "--json")[0]
    shown = said("export", "colours", f"out={tmp_path / 'net.weft'}", "licence=MIT")[0]
    assert "uint8[batch, 3, 8, 8]" in shown
    assert "float32[batch, 3]" in shown
    assert "3: blue, green, red" in shown
    monkeypatch.chdir(tmp_path)  # no run is here
    assert said("predict", "net.weft", *images, "--json")[0] == expected
    _, error = said("export", str(at_home / "runs/classify/colours"), "out=net.weft", code=2)
    assert "net.weft already exists" in error
    manifest = weft.load("net.weft").facts
    assert manifest["labels"] == ["blue", "green", "red"]
    assert manifest["metrics"]
    assert manifest["licence"] == "MIT"
    assert manifest["meaning"]["outputs"] == "probability of each label"
    assert manifest["meaning"]["inputs"].startswith("images: 8 bits a channel")
    _, error = said("predict", str(at_home / "photos/red/0.png"), images[0], code=1)
    assert "is not a saved program" in error
    weft.save("plain.weft", lambda x: x, weft.ones((2, 3)))
    _, error = said("predict", "plain.weft", images[0], code=2)
    assert "a model with one input of images (batch, channels, height, width) is required" in error


def test_an_exported_run_brings_compiled_code_along(
    at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, path = str(at_home / "photos/red/0.png"), str(tmp_path / "fast.weft")
    expected = said("predict", "colours", image)[0]
    said("export", "colours", f"out={path}", "compiled=host")
    assert weft.load(path).compiled_targets == ["host"]
    assert said("predict", path, image)[0] == expected
    compiled: list[Any] = []
    monkeypatch.setattr(engine, "_emitted", lambda *given: compiled.append(given))
    with knobs.set(cache="off"):
        assert said("predict", path, image, "trust_compiled=true")[0] == expected
    assert not compiled
    _, error = said("export", "colours", "to=onnx", f"out={tmp_path / 'net.onnx'}", "compiled=host", code=2)
    assert "compiled is a setting of to=weft, got to=onnx" in error
    _, error = said("export", "colours", f"out={tmp_path / 'z80.weft'}", "compiled=z80", code=2)
    assert "targets of host, cuda, got 'z80'" in error


def test_a_run_exported_to_onnx_takes_pixels_and_gives_what_the_run_predicts(at_home: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    shown = said("export", "colours", "to=onnx", f"out={path}")[0]
    assert "input: uint8[batch, 3, 8, 8]" in shown
    assert "3: blue, green, red" in shown
    image = str(at_home / "photos/red/0.png")
    expected = json.loads(said("predict", "colours", image, "--json")[0])["classes"]
    pixels = find_predictor("predict", "colours").image(image)[None]
    (found,) = ReferenceEvaluator(str(path)).run(None, {"input": pixels})
    assert dict(zip(("blue", "green", "red"), found[0].tolist(), strict=True)) == pytest.approx(
        expected, rel=1e-4, abs=1e-4
    )
    again = json.loads(said("predict", str(path), image, "--json")[0])["classes"]
    assert again == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert "contains its own preprocessing" in said("predict", str(path), image, "mean=0.5", code=2)[1]
    bare = tmp_path / "bare.onnx"
    assert (
        "input: float32[batch, 3, 8, 8]"
        in said("export", "colours", "to=onnx", f"out={bare}", "preprocessing=false")[0]
    )
    before = json.loads(weft.onnx.load(bare).metadata["preprocessing_before"])["data"]
    mean, std = (np.array(before[name], np.float32).reshape(3, 1, 1) for name in ("mean", "std"))
    (logits,) = ReferenceEvaluator(str(bare)).run(None, {"input": (pixels / np.float32(255) - mean) / std})
    np.testing.assert_allclose(weft.softmax(weft.asarray(logits)).numpy(), found, rtol=1e-4, atol=1e-5)
    _, error = said("export", "colours", f"out={tmp_path / 'bare.weft'}", "preprocessing=false", code=2)
    assert "preprocessing is a setting of to=onnx, got to=weft" in error
    assert "licence is a setting of to=weft and to=onnx" in said("export", "colours", "to=c", "licence=MIT", code=2)[1]
    metadata = weft.onnx.load(path).metadata
    assert metadata["task"] == "classify"
    assert json.loads(metadata["preprocessing"])["resize"] == "squash"


def train_on_text(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """A run called t, in the folder."""
    monkeypatch.chdir(folder)
    Path("t.txt").write_text("to be or not to be, that is the question. " * 30)
    said("train", "t.txt", *words, "epochs=1", "length=16", "name=t")


@pytest.mark.sweep(share=1.0)
@pytest.mark.parametrize("model", ["char_lstm", "gpt"])
def test_an_exported_text_network_writes_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    train_on_text(tmp_path, monkeypatch, f"model={model}", "hidden=128")
    said("export", "t", "out=t.weft")
    run, program = (said("predict", name, "to be", "length=12")[0] for name in ("t", "t.weft"))
    assert run == program


GPT = "heads=4", "key_heads=2", "window=5"


@pytest.mark.sweep(share=0.3)
@pytest.mark.parametrize("positions", ["rotary", "alibi"])
def test_a_gpt_keeps_its_heads_positions_and_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: str
) -> None:
    """Whatever is done with the run builds the network that was trained."""
    train_on_text(tmp_path, monkeypatch, "model=gpt", "hidden=32", "layers=2", f"positions={positions}", *GPT)
    writer = find_writer("generate", "t")
    for block in writer.model.blocks:
        attention = block.attention
        assert (attention.heads, attention.key_heads, attention.window) == (4, 2, 5)
        assert (attention.rotary, attention.alibi) == (positions == "rotary", positions == "alibi")
    assert writer.model.places is None
    generated = said("generate", "t", "to be", "length=9", "temperature=0")[0]
    assert generated == said("predict", "t", "to be", "length=9", "temperature=0")[0]
    said("export", "t", "out=t.weft")
    assert generated == said("generate", "t.weft", "to be", "length=9", "temperature=0")[0]
    assert json.loads(said("eval", "t", "--json")[0])["loss"] < 5
    said("resume", "t", "epochs=2")
    weights = load("runs/text/t/weights/last.safetensors")
    assert weights["blocks.0.attention.key.weight"].shape == (16, 32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("hidden=200", "hidden= must be a multiple of heads=, got hidden=200 and heads=3 (hidden / 64)."),
        ("hidden=32 heads=5", "hidden= must be a multiple of heads=, got hidden=32 and heads=5."),
        ("hidden=32 heads=4 key_heads=3", "heads= must be a multiple of key_heads=, got heads=4 and key_heads=3."),
        (
            "hidden=20 heads=4 positions=rotary",
            "positions=rotary requires an even number of features in each head, got 5",
        ),
        ("model=char_lstm window=4", "window= requires the network gpt, got char_lstm."),
        ("model=none key_heads=2", "key_heads= requires the network gpt, got char_lstm."),
        ("positions=sine", "positions=sine cannot be used: it must be learned, rotary or alibi."),
    ],
)
def test_settings_of_a_gpt_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("to be or not to be, that is the question. " * 30)
    given = words.split() if "model=" in words else ["model=gpt", *words.split()]
    assert message in said("train", "t.txt", *given, "length=16", code=2)[1]
    assert not Path("runs").exists()


def test_positions_are_those_of_the_zoo() -> None:
    assert SETTINGS["positions"].choices == get_args(Positions)


# --- predict --------------------------------------------------------------------------------------------------------------------


def test_folders_patterns_and_lists(at_home: Path) -> None:
    one_by_one = [json.loads(said("predict", "colours", f"photos/red/{i}.png", "--json")[0]) for i in range(3)]
    assert [next(iter(one["classes"])) for one in one_by_one] == ["red"] * 3
    every = [json.loads(line) for line in said("predict", "colours", "photos", "--json")[0].splitlines()]
    assert [one["path"] for one in every] == [f"photos/{c}/{i}.png" for c in ("blue", "green", "red") for i in range(8)]
    by_path = {one["path"]: one["classes"] for one in every}
    for one in one_by_one:  # in a batch as alone
        assert by_path[one["path"]] == pytest.approx(one["classes"], rel=1e-5)
    assert len(said("predict", "colours", "photos/*/[0-3].png")[0].splitlines()) == 12
    (at_home / "some.txt").write_text("photos/red/0.png red\nphotos/blue/1.png\n")
    assert [line.split(":")[0] for line in said("predict", "colours", "some.txt")[0].splitlines()] == [
        "photos/red/0.png", "photos/blue/1.png",
    ]  # fmt: skip
    (at_home / "some.csv").write_text("label,path\nred,photos/red/3.png\n")
    assert said("predict", "colours", "some.csv")[0].startswith("photos/red/3.png: red")


def test_more_images_than_a_batch(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = said("predict", "colours", "photos", "--csv")[0]
    monkeypatch.setattr(importlib.import_module("weft.jobs.prediction.predictions"), "BATCH", 5)
    rows, wanted = (
        list(csv.DictReader(io.StringIO(t))) for t in (said("predict", "colours", "photos", "--csv")[0], whole)
    )
    assert [(r["path"], r["class"]) for r in rows] == [(r["path"], r["class"]) for r in wanted]
    np.testing.assert_allclose(*([float(r["probability"]) for r in t] for t in (rows, wanted)), rtol=1e-4)


def test_a_bad_file_is_reported_and_the_rest_goes_on(at_home: Path, tmp_path: Path) -> None:
    Image.open(at_home / "photos" / "red" / "0.png").save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    Image.open(at_home / "photos" / "blue" / "0.png").save(tmp_path / "c.png")
    (tmp_path / ".hidden").write_bytes(b"")
    out, err = said("predict", "colours", str(tmp_path), code=1)
    assert [line.split(": ")[1].split()[0] for line in out.splitlines()] == ["red", "blue"]
    assert f"{tmp_path / 'b.png'} is not an image" in err
    assert "1 file of 3 could not be read; all others were predicted" in err
    found = [json.loads(line) for line in said("predict", "colours", str(tmp_path), "--json", code=1)[0].splitlines()]
    assert [sorted(one) for one in found] == [["classes", "path"], ["error", "path"], ["classes", "path"]]
    rows = list(csv.DictReader(io.StringIO(said("predict", "colours", str(tmp_path), "--csv", "top=2", code=1)[0])))
    assert [r["class"] for r in rows] == ["red", None, "blue"]
    assert ["is not an image" in r["error"] for r in rows] == [False, True, False]
    assert set(rows[0]) == {"path", "error", "class", "probability", "class_2", "probability_2"}
    assert "1 file of 1 could not be read." in said("predict", "colours", str(tmp_path / "b.png"), code=1)[1]


def test_nothing_to_predict(at_home: Path, tmp_path: Path) -> None:
    assert "has no files" in said("predict", "colours", str(tmp_path), code=2)[1]
    assert "no file matches" in said("predict", "colours", "photos/*.gif", code=2)[1]
    assert "csv and json exclude each other" in said("predict", "colours", "photos", "--csv", "--json", code=2)[1]


# --- eval -----------------------------------------------------------------------------------------------------------------------


def test_other_classes(at_home: Path, tmp_path: Path) -> None:
    photos(tmp_path / "other", ("blue", "yellow"))
    err = said("eval", "colours", f"data={tmp_path / 'other'}", code=2)[1]
    assert "the run has the classes blue, green and red" in err
    assert "has others, yellow, and lacks green and red" in err


def test_other_image_files_are_made_like_those_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits are gray images of 8 x 8, and these are not."""
    monkeypatch.chdir(tmp_path)
    said("train", "digits", "model=logistic_regression", "epochs=1")
    photos(tmp_path / "shots", ("0", "1"))
    with knob_data(tmp_path):
        found = json.loads(said("eval", "digits-logistic_regression-1", "data=shots", "split=train", "--json")[0])
    assert found["examples"] == 6
    np.savez(tmp_path / "wide.npz", x=np.zeros((8, 1, 8, 9), np.uint8), y=np.arange(8) % 2)
    err = said("eval", "digits-logistic_regression-1", "data=wide.npz", code=2)[1]
    assert "the run learned from inputs of 1 x 8 x 8, and wide.npz has inputs of 1 x 8 x 9" in err


def test_fewer_classes_keep_their_numbers(at_home: Path, tmp_path: Path) -> None:
    """green and red are classes 0 and 1 there, and 1 and 2 of the run."""
    photos(tmp_path / "less", ("blue", "green", "red"))
    for file in (tmp_path / "less" / "blue").iterdir():
        file.unlink()
    (tmp_path / "less" / "blue").rmdir()
    found = json.loads(said("eval", "colours", f"data={tmp_path / 'less'}", "split=train", "--json")[0])
    assert found["accuracy"] > 0.6
    assert found["notes"] == [f"{tmp_path / 'less'} has no examples of blue"]
    assert "blue  " not in said("eval", "colours", f"data={tmp_path / 'less'}", "split=train")[0]


def test_other_data_is_scaled_as_the_run_learned_it(at_home: Path, tmp_path: Path) -> None:
    """Dark copies of the photos have a mean of their own, which the network never saw: eval must say what predict says."""
    for file in (at_home / "photos").rglob("*.png"):
        split = "validation" if file.stem in "01" else "train"
        target = tmp_path / "dark" / split / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(Image.open(file)) // 2).save(target)
    found = json.loads(said("eval", "colours", f"data={tmp_path / 'dark'}", "split=validation", "--json")[0])
    lines = said("predict", "colours", str(tmp_path / "dark" / "validation"), "--json")[0].splitlines()
    assert found["examples"] == len(lines) == 6
    shares = [one["classes"][Path(one["path"]).parent.name] for one in map(json.loads, lines)]
    assert found["loss"] == pytest.approx(-np.log(shares).mean(), rel=1e-4)


def test_a_text_with_other_characters() -> None:
    """A character has the number that it had when the network learned."""
    learned = Text(np.zeros(9, np.int32), "abcde", 4)
    given = Text(np.array([0, 1, 2, 0, 1, 2, 0], np.int32), "bde", 3, "less")
    assert as_learned(given, learned, "less.txt")[0].inputs([0]).tolist() == [[1, 3, 4]]
    with pytest.raises(UserError, match="more.txt has characters that the run never saw: '!' and 'B'"):
        as_learned(Text(np.zeros(9, np.int32), "!Ba", 4), learned, "more.txt")
    with pytest.raises(UserError, match="is different"):
        as_learned(Arrays(np.zeros((3, 4)), [0, 1, 1]), learned, "line.npz")


# --- before and after a training ----------------------------------------------------------------------------------------------------


def test_data_that_teaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["model=logistic_regression", "size=8", "fast_dev_run=1"]
    with knob_data(tmp_path):
        photos(tmp_path / "one", ("red",))
        assert "warning: there is only one class, red" in said("train", "one", *quick)[0]
        photos(tmp_path / "few", ("blue", "red"))
        for i in (1, 2, 3):
            (tmp_path / "few" / "red" / f"{i}.png").unlink()
        assert "warning: red has only one training image" in said("train", "few", *quick)[0]


def test_a_run_without_a_checkpoint_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "digits", "model=logistic_regression", "epochs=1", "name=r1"]
    said(*words)
    first = tmp_path / "runs" / "classify" / "r1"
    wanted = {n: t.numpy() for n, t in load(first / "weights" / "last.safetensors").items()}
    stopped = tmp_path / "runs" / "classify" / "r2"
    stopped.mkdir()
    (stopped / "args.yaml").write_bytes((first / "args.yaml").read_bytes())
    assert "starts again" in said("resume", "r2")[0]
    for name, tensor in load(stopped / "weights" / "last.safetensors").items():
        np.testing.assert_array_equal(tensor.numpy(), wanted[name])
    (first / "state" / "last.safetensors").unlink()  # but its results are there: they are not written over
    err = said("resume", "r1", code=1)[1]
    command = err.rpartition("with: ")[2].split()
    assert command[:2] == ["weft", "train"]
    said(*command[1:])
    assert (tmp_path / "runs" / "classify" / "r1-again" / "report.html").exists()


def test_a_run_does_not_go_on_with_other_classes(at_home: Path, tmp_path: Path) -> None:
    photos(tmp_path / "other", ("blue", "green", "yellow"))
    run = at_home / "runs" / "classify" / "colours"
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    out, err = said("resume", "colours", f"data={tmp_path / 'other'}", "epochs=13", code=2)
    assert out == ""
    assert "of the classes blue, green and red, and" in err
    assert "of the classes blue, green and yellow" in err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_version() -> None:
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())["project"]
    assert said("--version")[0] == f"weft {weft.__version__}\n" == f"weft {project['version']}\n"


# --- how it reads ---------------------------------------------------------------------------------------------------------------------


def test_counted_and_listed() -> None:
    assert [counted(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert listed(["a", "b"]) == "a and b"


PYTHON = re.compile(r"\bNone\b|\bTrue\b|\bFalse\b|(?<!\w)\[[\"'\d]|\(\d+,|<class|weft\.\w+ object|: null\b")
SINGULAR = re.compile(
    r"(?<![\d.,/=])1 (examples|classes|images|files|epochs|steps|parameters|threads|lines|words|characters|runs)\b"
)


def shown(text: str) -> str:
    """What a browser shows of a page."""
    return unescape(re.sub(r"<style.*?</style>|<title>.*?</title>|<[^>]*>", " ", text, flags=re.S))


def test_people_read_no_python(at_home: Path) -> None:
    """Pages and what is printed: no None, no lists, no tuples; one is not many."""
    said(
        "train",
        "photos",
        "model=logistic_regression",
        "size=8x8",
        "epochs=1",
        "batch=auto",
        "name=second",
        "patience=1",
    )
    texts = {
        "compare": said("runs", "compare", "colours", "second", "html=compare.html")[0],
        "compare.html": shown((at_home / "compare.html").read_text()),
        "report.html": shown((at_home / "runs" / "classify" / "colours" / "report.html").read_text()),
    }
    for words in (
        ["runs", "list"], ["runs", "show", "colours"], ["eval", "colours"], ["cfg", "env"], ["dataset", "info", "photos"],
        ["dataset", "list"], ["predict", "colours", "photos/red/0.png"], ["summary", "mlp"], ["devices"], ["models"], ["help", "train"],
        ["help", "predict"], ["train", "photos", "model=logistic_regression", "size=8", "fast_dev_run=1", "batch=18"],
        ["bench", "lenet5_classic", "batch=1", "what=infer", "seconds=0.01", "threads=1", "classes=1"],
    ):  # fmt: skip
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            main(words)
        texts[" ".join(words)] = out.getvalue()
    for name, text in texts.items():
        assert text, name
        for line in text.splitlines():
            assert not PYTHON.search(line), f"{name}: {line}"
            assert not SINGULAR.search(line), f"{name}: {line}"
