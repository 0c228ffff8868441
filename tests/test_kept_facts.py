"""What a file of a network states about itself survives every conversion, and predictions with it: labels, preprocessing, names, licence."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import weft
from weft import nn
from weft.cli import main
from weft.errors import RunError, UserError
from weft.io.file_kind import file_kind
from weft.saved.manifest import read_manifest


def said(*words: str, code: int = 0) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        assert main(list(words)) == code, out.getvalue()
    return out.getvalue()


def probabilities(name: str) -> dict[str, float]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert main(["predict", name, "edges.png", "--json"]) == 0
    found: dict[str, float] = json.loads(out.getvalue())["classes"]
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on wide photos that were cropped: the colour of the middle is the class, and that of the edges must not count."""
    folder = tmp_path_factory.mktemp("home")
    rng = np.random.default_rng(0)
    for name, colour in (("blue", (10, 20, 220)), ("red", (220, 20, 10))):
        (folder / "photos" / name).mkdir(parents=True)
        for i in range(8):
            image = Image.new("RGB", (32, 16), tuple(int(c) for c in rng.integers(0, 255, 3)))
            image.paste(colour, (8, 0, 24, 16))
            image.save(folder / "photos" / name / f"{i}.png")
    edges = Image.new("RGB", (32, 16), (255, 0, 0))
    edges.paste((10, 20, 220), (8, 0, 24, 16))
    edges.save(folder / "edges.png")
    before = os.getcwd()
    os.chdir(folder)
    try:
        with weft.knobs.set(data=str(folder)):
            said(
                "train",
                "photos",
                "model=logistic_regression",
                "size=8",
                "resize=crop",
                "epochs=6",
                "rate=0.05",
                "name=run",
            )
            said("export", "run", "out=net.weft", "licence=MIT")
    finally:
        os.chdir(before)
    return folder


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(home)
    with weft.knobs.set(data=str(home)):
        yield


# --- conversions --------------------------------------------------------------------------------------------------------------


def test_a_program_as_onnx_and_back_predicts_the_same() -> None:
    expected = probabilities("net.weft")
    assert expected["blue"] > 0.9
    said("convert", "net.weft", "there.onnx")
    said("convert", "there.onnx", "back.weft")
    for file in ("there.onnx", "back.weft"):
        assert probabilities(file) == pytest.approx(expected, abs=1e-5)
        facts = weft.load(file).facts
        assert (facts["licence"], facts["labels"], facts["origin"]) == ("MIT", ["blue", "red"], "weft train, run run")
    assert sorted(weft.load("back.weft").named_tensors()) == sorted(weft.load("there.onnx").named_tensors())
    assert len(weft.load("there.onnx").named_parameters()) == len(weft.load("net.weft").named_parameters())


def test_the_content_tells_what_a_file_is() -> None:
    said("convert", "net.weft", "suffix.onnx")
    Path("suffix.onnx").rename("model")
    assert file_kind("model") == "onnx"
    assert probabilities("model") == pytest.approx(probabilities("net.weft"), abs=1e-5)
    said("convert", "model", "again.weft")
    assert "has this format already" in said("convert", "model", "again.onnx", code=2)


def test_without_preprocessing_the_facts_say_how_images_become_inputs() -> None:
    said("export", "run", "to=onnx", "preprocessing=false", "out=bare.onnx")
    said("convert", "bare.onnx", "bare.weft")
    for file in ("bare.onnx", "bare.weft"):
        assert probabilities(file) == pytest.approx(probabilities("net.weft"), abs=1e-4)
    assert "images are 8x8 (crop), RGB, NCHW" in said("predict", "bare.weft", "edges.png")


def test_a_network_that_takes_another_size_than_images_are_stored_in() -> None:
    said("train", "digits", "model=lenet5", "epochs=1", "name=small")
    said("export", "small", "to=onnx", "preprocessing=false", "out=small.onnx")
    assert weft.load("small.onnx").facts["images"]["stored"] == [8, 8]
    assert probabilities("small.onnx") == pytest.approx(probabilities("small"), abs=1e-4)


def test_settings_change_what_a_bare_network_is_given() -> None:
    """A network that was saved in Python, with labels: nothing else is known of it."""
    model = nn.Sequential(nn.GlobalAvgPool(), nn.Linear(3, 2))
    model.layers[1].weight.assign(np.array([[0, 0, 1.0], [1.0, 0, 0]], np.float32))
    weft.save("means.weft", model.eval(), weft.TensorSpec(("batch", 3, 16, 32)), labels=["blue", "red"], train=False)
    plain, weighted = (
        probabilities("means.weft"),
        json.loads(said("predict", "means.weft", "edges.png", "range=255", "--json").splitlines()[-1]),
    )
    assert plain["red"] > 0.5  # half of the picture is red
    assert weighted["classes"]["red"] > plain["red"]
    weft.save(
        "shares.weft", lambda x: weft.softmax(model(x)), weft.TensorSpec(("batch", 3, 16, 32)), labels=["blue", "red"]
    )
    assert "the output is used as it is" in said("predict", "shares.weft", "edges.png")
    assert probabilities("shares.weft") == pytest.approx(plain, abs=1e-5)
    assert "contains its own preprocessing" in said("predict", "net.weft", "edges.png", "mean=0.5", code=2)


def test_a_loaded_network_that_is_saved_again_keeps_its_facts() -> None:
    program = weft.load("net.weft")
    weft.save("again.weft", program, weft.TensorSpec(("batch", 3, 8, 8), "uint8"), metrics=None, licence="BSD")
    found = weft.load("again.weft").facts
    assert found["labels"] == ["blue", "red"]
    assert found["licence"] == "BSD"
    assert "metrics" not in found
    assert probabilities("again.weft") == pytest.approx(probabilities("net.weft"), abs=1e-6)


def test_training_starts_from_a_saved_program() -> None:
    said(
        "train",
        "photos",
        "model=logistic_regression",
        "size=8",
        "weights=net.weft",
        "epochs=1",
        "rate=0.0001",
        "name=second",
    )
    first, second = (
        weft.load("net.weft").named_parameters(),
        weft.io.load_weights("runs/classify/second/weights/last.safetensors"),
    )
    moved = np.abs(first["network.layers.1.weight"].numpy() - second["layers.1.weight"]).max()
    assert moved < 0.01, "it began somewhere else"


# --- names --------------------------------------------------------------------------------------------------------------------


def test_arguments_and_results_have_names() -> None:
    weft.save("two.weft", lambda image, mask: {"sum": image + mask, "product": image * mask}, (weft.zeros((1, 4)),) * 2)
    program = weft.load("two.weft")
    assert program.argument_names == ["image", "mask"]
    assert [port.title for port in program.manifest.functions["call"].outputs] == ["product", "sum"]
    said("convert", "two.weft", "two.onnx")
    assert [port.name for port in weft.load("two.onnx").inputs] == ["image", "mask"]
    said("convert", "two.onnx", "three.weft")
    assert weft.load("three.weft").argument_names == ["image", "mask"]


def test_a_program_with_keyword_arguments_becomes_onnx() -> None:
    weft.save("words.weft", lambda a, scale: a * scale, {"a": weft.zeros((1, 3)), "scale": weft.zeros((1, 3))})
    said("convert", "words.weft", "words.onnx")
    found = weft.load("words.onnx")(a=weft.full((2, 3), 2.0), scale=weft.full((2, 3), 3.0))
    assert found.tolist() == [[6.0] * 3] * 2


# --- what is rejected ----------------------------------------------------------------------------------------------------------


class Counting(nn.Module):
    """Replaces its state instead of assigning to it."""

    def __init__(self) -> None:
        self.position = weft.zeros((4,))

    def forward(self, x: Any) -> Any:
        self.position = self.position + 1.0
        return x + self.position


def test_a_network_that_rebinds_its_state_is_refused_and_left_alone() -> None:
    model = Counting()
    before = model.position
    with pytest.raises(UserError, match=r"replaces the tensor Counting.position .* self.position.assign\(value\)"):
        weft.save("counting.weft", model, weft.zeros((4,)), dynamic=False)
    assert model.position is before
    assert not Path("counting.weft").exists()


def test_code_that_cannot_be_compiled_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RunError("cuda", "there is none.")

    weft.save("code.weft", nn.Linear(3, 2), weft.zeros((1, 3)))
    before = Path("code.weft").read_bytes()
    monkeypatch.setattr("weft.saved.save.compiled_entries", fails)
    for path in ("code.weft", "new.weft"):
        with pytest.raises(RunError, match="there is none"):
            weft.save(path, nn.Linear(3, 2), weft.zeros((1, 3)), compiled="host")
    assert Path("code.weft").read_bytes() == before
    assert not Path("new.weft").exists()


WRONG_SAVES: list[tuple[Any, dict[str, Any], str]] = [
    (3, {}, "a network or a function is required, got 3"),
    (lambda x: x, {"labels": "abc"}, "labels must be a list of texts, got 'abc'"),
    (lambda x: x, {"labels": [1, 2]}, "labels must be a list of texts"),
    (lambda x: x, {"metrics": {"loss": float("nan")}}, "facts about a program must be JSON"),
]


@pytest.mark.parametrize(("program", "facts", "message"), WRONG_SAVES)
def test_what_cannot_be_saved(program: Any, facts: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        weft.save("wrong.weft", program, weft.zeros((1, 3)), **facts)
    assert not Path("wrong.weft").exists()


def test_a_size_that_fails_is_named() -> None:
    with pytest.raises(UserError, match=r"the function fails for a=3: \[reshape\]"):
        weft.save("odd.weft", lambda x: x.reshape((x.shape[0] // 2, 2)), weft.TensorSpec(("a",)))


def test_files_that_are_no_networks() -> None:
    np.savez("weights.npz", a=np.zeros(2))
    weft.io.save("weights.safetensors", {"a": np.zeros(2)})
    for name in ("weights.npz", "weights.safetensors"):
        with pytest.raises(UserError, match="holds weights alone, not a network"):
            weft.load(name)
        assert "holds weights alone" in said("predict", name, "edges.png", code=2)
    Path("empty.weft").write_bytes(b"")
    with pytest.raises(RunError, match=r"empty.weft is empty"):
        weft.load("empty.weft")
    with pytest.raises(RunError, match="cannot be read: embedded null byte"):
        weft.load("a\0.weft")
    with pytest.raises(UserError, match="the path of a file is required, got 3"):
        weft.load(3)  # type: ignore[arg-type]
    said("convert", "net.weft", "whole.onnx")
    for file, what in (("net.weft", "a saved program"), ("whole.onnx", "an ONNX model")):
        with pytest.raises(UserError, match=f"{file} is {what}, not a file of weights"):
            weft.io.load_weights(file)


def test_versions_below_the_first_one() -> None:
    weft.save("old.weft", lambda x: x, weft.zeros(3))
    with zipfile.ZipFile("old.weft") as archive:
        text = archive.read("manifest.json").decode()
    assert read_manifest(text, "old.weft").functions
    with pytest.raises(RunError, match="the version is 0"):
        read_manifest(text.replace('"version": 1', '"version": 0'), "old.weft")


EXPORTS = [
    (["run", "to=web", "target=armv7"], "target is a setting of to=c, got to=web"),
    (["run", "threads=2"], "threads is a setting of to=c, got to=weft"),
    (["run", "to=weft", "out=a.onnx"], "out=a.onnx is the name of a file for to=onnx, got to=weft"),
    (["net.weft", "to=onnx"], "got the file net.weft: weft convert net.weft net.onnx"),
    (["weights.npz", "to=c"], "which? Give model="),
]


@pytest.mark.parametrize(("words", "message"), EXPORTS)
def test_exports_that_are_refused(words: list[str], message: str) -> None:
    np.savez("weights.npz", a=np.zeros(2))
    assert message in said("export", *words, code=2)


def test_the_suffix_names_the_format_and_models_become_c_and_pages() -> None:
    said("export", "run", "out=named.onnx", "exist_ok=true")
    assert file_kind("named.onnx") == "onnx"
    said("export", "named.onnx", "to=c", "out=library")
    assert "-resize 8x8^ -gravity center -extent 8x8 out.ppm" in Path("library/README.md").read_text()
    assert "-resize 8x8^" in Path("library/example.c").read_text()
    said("export", "named.onnx", "to=web", "out=page")
    assert any('"resize": "crop"' in file.read_text(errors="ignore") for file in Path("page").glob("*.*"))


def test_a_library_prints_in_a_few_lines() -> None:
    library = weft.export_c("printed", nn.Linear(64, 64), weft.zeros((1, 64)))
    assert len(repr(library)) < 3000 < len(library.weights)


@pytest.mark.parametrize("to", ["weft", "onnx"])
def test_exported_files_tell_nothing_about_the_folders_of_this_machine(home: Path, to: str) -> None:
    """Their settings are for people who get the file: a path is its last name."""
    said("train", str(home / "photos"), "model=logistic_regression", "size=8", "epochs=1", f"name=far-{to}", "seed=1")
    said("export", f"far-{to}", f"to={to}", f"out=far.{to}")
    facts = weft.load(f"far.{to}").facts
    assert facts["settings"]["data"] == "photos"
    assert str(home) not in json.dumps(facts)
