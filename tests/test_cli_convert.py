"""`weft convert`: weights and programs in other formats hold the same numbers, and impossible pairs are rejected."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import io, nn, zoo
from weft.cli import main
from weft.zoo.published import NAMINGS
from weft.zoo.published.naming import sources

TORCH, KERAS = (Path(__file__).parent / folder for folder in ("torch_files", "keras_files"))


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def converted(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["convert", *words, "json=true"]) == 0, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["convert", *words]) in (1, 2)
    return capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_weights_of_every_program(suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("numpy.npz", w=np.arange(6.0).reshape(2, 3))
    for source in (TORCH / "checkpoint.pth", KERAS / "whole.h5", KERAS / "whole.keras", Path("numpy.npz")):
        target = f"{source.stem}{source.suffix[1:]}.{suffix}"
        wanted = io.load_weights(source)
        assert converted(capsys, str(source), target)["tensors"] == len(wanted)
        found = io.load_weights(target)
        assert list(found) == list(wanted)
        assert all(np.array_equal(found[n], wanted[n]) and found[n].dtype == wanted[n].dtype for n in wanted)
    assert suffix == "npz" or io.safetensors.metadata("wholeh5.safetensors") == {"origin": "whole.h5"}


def _lenet() -> nn.Module:
    weft.seed(3)
    return zoo.lenet5(classes=4).eval()


def _save_published(path: str) -> None:
    """The weights of `_lenet` under Caffe's names."""
    own = _lenet().named_tensors()
    np.savez(path, **{source.name: own[n].numpy() for n, source in sources(_lenet(), NAMINGS["lenet5"][0]).items()})


def test_published_weights_become_a_network_of_the_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    _save_published("caffe.npz")
    options = ("model=lenet", "classes=4")
    assert converted(capsys, "caffe.npz", "own.safetensors", *options)["library"] == "caffe"
    own = io.load("own.safetensors")
    assert all(np.array_equal(own[n].numpy(), t.numpy()) for n, t in _lenet().named_tensors().items())
    found = converted(capsys, "caffe.npz", "net.weft", *options)
    assert found["inputs"] == ["float32[batch, 1, 28, 28]"]
    images = weft.asarray(np.random.default_rng(0).random((3, 1, 28, 28), np.float32))
    assert np.array_equal(weft.load("net.weft").eval()(images).numpy(), _lenet()(images).numpy())
    assert "do not fit lenet5. other shapes: ip2.weight" in refused(capsys, "caffe.npz", "b.npz", "model=lenet5")


def test_programs_to_onnx_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    weft.save("a.weft", _lenet(), weft.TensorSpec(("batch", 1, 28, 28)), labels=["a", "b", "c", "d"])
    assert converted(capsys, "a.weft", "b.onnx")["inputs"] == ["float32[batch, 1, 28, 28]"]
    assert json.loads(weft.onnx.load("b.onnx").metadata["labels"]) == ["a", "b", "c", "d"]
    assert converted(capsys, "b.onnx", "c.weft")["inputs"] == ["float32[batch, 1, 28, 28]"]
    images = weft.asarray(np.random.default_rng(0).random((2, 1, 28, 28), np.float32))
    wanted = _lenet()(images).numpy()
    assert np.allclose(weft.load("c.weft").eval()(images).numpy(), wanted, rtol=1e-5, atol=1e-6)
    converted(capsys, "b.onnx", "d.npz")
    assert np.array_equal(
        io.load_weights("d.npz")["layers.0.weight"], _lenet().named_tensors()["layers.0.weight"].numpy()
    )


def test_what_cannot_be_converted(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("w.npz", w=np.zeros(3))
    io.save("half.safetensors", {"w": np.zeros(3, ml_dtypes.bfloat16)})
    weft.save("a.weft", nn.Linear(2, 2), weft.zeros((1, 2)))
    Path("text.pth").write_text("no weights")
    for words, message in (
        ((), "two files are required"),
        (("w.npz",), "two files are required"),
        (("none.npz", "x.npz"), "a file is required, got 'none.npz'"),
        (
            ("w.npz", "x.pth"),
            "a file that ends in .safetensors, .npz, .weft, .onnx is required, got 'x.pth'. Weights (PyTorch",
        ),
        (("w.npz", "x.onnx"), "w.npz holds weights alone, and .onnx a whole network: which? Give model="),
        (("w.npz", "x.npz", "classes=3"), "give model= too"),
        (("w.npz", "w.npz"), "w.npz already exists"),
        (("w.npz", "x.npz", "model=lenet6"), "there is no network 'lenet6'"),
        (("w.npz", "x.npz", "model=lenet5"), "weights of lenet5 under the names of caffe are required, got w"),
        (("half.safetensors", "x.npz"), "NumPy has no bfloat16, which w has: convert to .safetensors instead"),
        (("a.weft", "b.weft"), "a.weft has this format already"),
        (("a.weft", "b.npz", "model=lenet5"), "model= is for files of weights"),
        (("text.pth", "x.npz"), "text.pth is damaged, or not in a format that is known"),
    ):
        found = refused(capsys, *words)
        assert message in found, (words, found)
    assert not list(Path().glob("x.*"))
