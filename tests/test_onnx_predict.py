"""`weft predict` with ONNX models of other programs: how images become inputs, what is said about it, and what is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from weft.cli import main

WEIGHT = np.array([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 4.0]], np.float32)  # the mean of each channel, weighted


def foreign(
    path: Path, shape: list[Any], *ends: str, dtype: int = TensorProto.FLOAT, outputs: int = 3, **metadata: str
) -> str:
    """A model that gives the weighted means of the channels, then these ops."""
    last = shape[-1] in (1, 3)
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT)]
    nodes += [helper.make_node("Transpose", ["f"], ["t"], perm=[0, 3, 1, 2] if last else [0, 1, 2, 3])]
    nodes += [helper.make_node("GlobalAveragePool", ["t"], ["g"]), helper.make_node("Flatten", ["g"], ["v"])]
    nodes += [helper.make_node("MatMul", ["v", "w"], ["y0"])]
    nodes += [helper.make_node(op, [f"y{i}"], [f"y{i + 1}"]) for i, op in enumerate(ends)]
    ports = [helper.make_tensor_value_info("x", dtype, shape)]
    results = [helper.make_tensor_value_info(f"y{len(ends)}", TensorProto.FLOAT, [shape[0], outputs])]
    weight = numpy_helper.from_array(WEIGHT[:, :outputs], "w")
    model = helper.make_model(
        helper.make_graph(nodes, "g", ports, results, [weight]), opset_imports=[helper.make_opsetid("", 17)]
    )
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return str(path)


@pytest.fixture
def photo(tmp_path: Path) -> str:
    """A picture of one colour: 255, 51, 102."""
    Image.new("RGB", (12, 10), (255, 51, 102)).save(tmp_path / "photo.png")
    return str(tmp_path / "photo.png")


def predicted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, float], str]:
    """The classes of one image, and what was said beside them."""
    assert main(["predict", *words, "--json"]) == 0
    shown = capsys.readouterr()
    return json.loads(shown.out)["classes"], shown.err


def softmax(*values: float) -> list[float]:
    powers = np.exp(values)
    return list(powers / powers.sum())


def test_defaults_are_said(tmp_path: Path, photo: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign(tmp_path / "net.onnx", ["n", 3, 8, 6])
    classes, said = predicted(capsys, path, photo)
    expected = softmax(1.0, 2 * 0.2, 4 * 0.4)
    assert {name: pytest.approx(p, rel=1e-5) for name, p in zip("012", expected, strict=True)} == classes
    for text in (
        "8x6 (squash)",
        "RGB",
        "NCHW",
        "values 0 to 1, not normalized",
        "softmax is applied",
        "classes are numbers",
    ):
        assert text in said


def test_everything_can_be_given(tmp_path: Path, photo: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign(tmp_path / "net.onnx", [1, "h", "w", 3], "Sigmoid")
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    settings = ["size=4", "colour=bgr", "range=255", "mean=100,50,0", "std=10", f"labels={tmp_path / 'labels.txt'}"]
    classes, said = predicted(capsys, path, photo, *settings)
    means = [(102 - 100) / 10, 2 * (51 - 50) / 10, 4 * 255 / 10]
    expected = {n: pytest.approx(1 / (1 + np.exp(-m)), rel=1e-5) for n, m in zip("abc", means, strict=True)}
    assert classes == expected
    for text in (
        "4x4",
        "BGR",
        "NHWC",
        "0 to 255, minus mean [100.0, 50.0, 0.0], divided by std [10.0]",
        "as it is",
        "labels.txt",
    ):
        assert text in said


@pytest.mark.parametrize(
    ("key", "text"),
    [("labels", '["a", "b", "c"]'), ("names", "{0: 'a', 1: 'b', 2: 'c'}"), ("character", "a\nb\nc")],
)
def test_labels_of_the_metadata(
    tmp_path: Path, photo: str, capsys: pytest.CaptureFixture[str], key: str, text: str
) -> None:
    path = foreign(tmp_path / "net.onnx", ["n", 3, 8, 8], "Softmax", dtype=TensorProto.UINT8, **{key: text})
    classes, said = predicted(capsys, path, photo)
    assert sorted(classes) == ["a", "b", "c"]
    assert "values 0 to 255;" in said
    assert f"metadata ({key})" in said


def test_numbers_in_batches_of_one(tmp_path: Path, photo: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = foreign(tmp_path / "net.onnx", [1, 3, 8, 8], outputs=1)
    assert main(["predict", path, photo, photo, "--csv"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{photo},,1.0"] * 2


@pytest.mark.parametrize(
    ("shape", "words", "message"),
    [
        (["n", "c", "h", "w"], [], "Give layout=nchw or layout=nhwc"),
        (["n", 3, 8, 8], ["size=9"], "images of 8x8 are required"),
        (["n", 3, 8, 8], ["labels=LABELS"], "3 labels are required, got 2"),
        (["n", 3, 8, 8], ["mean=1,2"], "images with 2 channels are required"),
        (["n", 3, 8], [], "one input of images"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, photo: str, capsys: pytest.CaptureFixture[str], shape: list[Any], words: list[str], message: str
) -> None:
    path = foreign(tmp_path / "net.onnx", shape)
    (tmp_path / "labels.txt").write_text('["a", "b"]')
    words = [word.replace("LABELS", str(tmp_path / "labels.txt")) for word in words]
    assert main(["predict", path, photo, *words]) == 2
    assert message in capsys.readouterr().err
