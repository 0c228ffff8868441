"""ONNX files that are damaged, hostile or beyond what weft supports are rejected with a reason."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from sampling import some
from weft.onnx import package
from weft.testing.counter import counted, generator


def tiny(nodes: list[Any] | None = None, opset: int = 20, weights: list[Any] | None = None) -> Any:
    nodes = nodes or [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = [numpy_helper.from_array(np.ones((3, 2), np.float32), "w")] if weights is None else weights
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return helper.make_model(
        helper.make_graph(nodes, "net", ports, results, weights), opset_imports=[helper.make_opsetid("", opset)]
    )


def refused(proto: Any, text: str) -> None:
    with pytest.raises(weft.UserError, match=text):
        weft.onnx.loads(proto.SerializeToString())


def test_a_file(tmp_path: Path) -> None:
    onnx.save(tiny(), tmp_path / "net.onnx")
    net = weft.onnx.load(tmp_path / "net.onnx")
    assert net(np.ones((1, 3), np.float32)).tolist() == [[3.0, 3.0]]
    assert repr(net).startswith("OnnxModule(x: float32[n, 3] -> y: float32[?]")


def test_importing_weft_does_not_import_onnx() -> None:
    code = "import sys, weft, weft.onnx; weft.onnx.load; print('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    (tmp_path / "net.onnx").write_bytes(tiny().SerializeToString())
    monkeypatch.setattr(package.importlib, "import_module", missing)
    with pytest.raises(weft.UserError, match=r"pip install '\.\[onnx\]'"):
        weft.onnx.load(tmp_path / "net.onnx")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError, match="a readable file is required"):
        weft.onnx.load(tmp_path / "missing.onnx")
    for content in (b"", b"hello", b"\x08\x07"):
        with pytest.raises(weft.UserError, match="not an ONNX file"):
            weft.onnx.loads(content)


def test_unsupported_ops_are_all_listed() -> None:
    nodes = [
        helper.make_node("Strange", ["x"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Odd", ["b"], ["c"], name="two", domain="own"),
        helper.make_node("Strange", ["c"], ["y"], name="three"),
    ]
    refused(tiny(nodes), r"Strange \(nodes 'one', 'three'\); own.Odd \(nodes 'two'\)")
    refused(
        tiny([helper.make_node("Relu", ["x"], ["y"], name="r", slope=2.0)]),
        r"Relu with the attributes slope \(nodes 'r'\)",
    )


@pytest.mark.parametrize("opset", [0, 99])
def test_unknown_opsets(opset: int) -> None:
    refused(tiny(opset=opset), f"an opset up to .* is required, got {opset}")


def test_ops_that_changed_before_opset_7() -> None:
    old = [helper.make_node("Add", ["x", "w"], ["y"], name="sum", axis=1, broadcast=1)]
    refused(tiny(old, opset=6), r"Add of opset 6 \(nodes 'sum'\)")
    assert weft.onnx.loads(tiny([helper.make_node("Sqrt", ["x"], ["y"])], opset=6).SerializeToString())


def test_values_that_nobody_makes() -> None:
    refused(tiny([helper.make_node("Add", ["x", "gone"], ["y"])]), "reads 'gone', which no earlier node makes")
    refused(tiny([helper.make_node("Relu", ["x"], ["z"])]), "returns 'y', which no node makes")
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    refused(tiny(twice), "makes 'y', which is there already")
    more = weft.onnx.loads(tiny([helper.make_node("Relu", ["x"], ["y", "z"])]).SerializeToString())
    with pytest.raises(weft.UserError, match="has 1 results, but names 2"):
        more(np.ones((1, 3), np.float32))
    refused(tiny([helper.make_node("MatMul", ["x"], ["y"])]), "needs 2 inputs or more, at most 2, got 1")


def test_a_tensor_cannot_claim_more_than_it_holds() -> None:
    lying = numpy_helper.from_array(np.ones((3, 2), np.float32), "w")
    lying.dims[0] = 1 << 40
    refused(tiny(weights=[lying]), "needs 8796093022208 bytes, but the file holds 24")
    typed = helper.make_tensor("w", TensorProto.FLOAT, (3, 2), [1.0] * 6)
    typed.dims[0] = 1 << 40
    refused(tiny(weights=[typed]), "but the file holds 24")
    lying.dims[0] = -3
    refused(tiny(weights=[lying]), "impossible shape")


@pytest.fixture
def external(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(24))
    proto = tiny()
    onnx.save(proto, folder / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return folder


def changed(folder: Path, **facts: str) -> Path:
    proto = onnx.load(folder / "net.onnx", load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = facts.get(entry.key, entry.value)
    (folder / "net.onnx").write_bytes(proto.SerializeToString())
    return folder / "net.onnx"


def test_external_data(external: Path) -> None:
    assert weft.onnx.load(external / "net.onnx")(np.ones((1, 3), np.float32)).tolist() == [[3.0, 3.0]]
    with pytest.raises(weft.UserError, match="stored in another file"):
        weft.onnx.loads((external / "net.onnx").read_bytes())


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "", "link", "."])
def test_external_data_stays_in_the_folder(external: Path, location: str) -> None:
    (external / "link").symlink_to(external.parent / "secret")
    with pytest.raises(weft.UserError, match=r"must lie beside the model|is missing"):
        weft.onnx.load(changed(external, location=location))


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"offset": "8"}, "which is shorter"),
        ({"length": "99999999"}, "needs 24 bytes of external data"),
        ({"offset": "-1"}, "needs 24 bytes of external data"),
        ({"offset": "many"}, "no number"),
        ({"location": "gone.bin"}, "there is no file 'gone.bin'"),
    ],
)
def test_external_data_that_does_not_fit(external: Path, facts: dict[str, str], text: str) -> None:
    with pytest.raises(weft.UserError, match=text):
        weft.onnx.load(changed(external, **facts))


RECURSIVE = """
<ir_version: 9, opset_import: ["": 20, "own": 1]>
net (float[n] x) => (float[n] y) { y = own.f (x) }
<domain: "own", opset_import: ["": 20, "own": 1]> f (a) => (b) { b = own.g (a) }
<domain: "own", opset_import: ["": 20, "own": 1]> g (a) => (b) { b = own.f (a) }
"""


def test_functions_that_call_themselves() -> None:
    refused(onnx.parser.parse_model(RECURSIVE), "'f' does")


def test_functions_that_expand_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.onnx.graph.NODE_LIMIT", 1000)
    head = '<ir_version: 9, opset_import: ["": 20, "own": 1]> net (float[n] x) => (float[n] y) { y = own.f0 (x) }\n'
    body = '<domain: "own", opset_import: ["": 20, "own": 1]> f%d (a) => (b) { c = own.f%d (a) b = own.f%d (c) }\n'
    last = '<domain: "own", opset_import: ["": 20]> f40 (a) => (b) { b = Relu (a) }\n'
    text = head + "".join(body % (i, i + 1, i + 1) for i in range(40)) + last
    refused(onnx.parser.parse_model(text), "at most 1,000 nodes")


def test_arguments_that_do_not_fit() -> None:
    net = weft.onnx.loads(tiny().SerializeToString())
    with pytest.raises(weft.UserError, match=r"x: float32\[n, 3\] is required, got shape \(1, 4\)"):
        net(np.ones((1, 4), np.float32))
    with pytest.raises(weft.UserError, match="is required, got float64"):
        net(np.ones((1, 3)))
    with pytest.raises(weft.UserError, match="the inputs x: .* are required, got 0 in order"):
        net()
    assert net(x=np.ones((2, 3), np.float32)).shape == (2, 2)


@pytest.mark.parametrize("free", [{"dim_value": -1}, {"dim_param": "?"}])
def test_sizes_that_exporters_write_for_free_ones(free: dict[str, Any]) -> None:
    proto = tiny()
    for dimension in proto.graph.input[0].type.tensor_type.shape.dim:
        for name, value in free.items():
            setattr(dimension, name, value)
    net = weft.onnx.loads(proto.SerializeToString())
    assert net.inputs[0].shape == (None, None)
    assert net(np.ones((5, 3), np.float32)).shape == (5, 2)


def test_errors_name_the_node() -> None:
    net = weft.onnx.loads(
        tiny([helper.make_node("Concat", ["x", "w"], ["y"], name="join", axis=0)]).SerializeToString()
    )
    with pytest.raises(weft.UserError, match=r"Node Concat 'join'"):
        net(np.ones((1, 3), np.float32))


def test_damaged_files_are_refused_or_read() -> None:
    """No other error, no hang, whatever bytes change."""
    rng = generator("onnx files")
    nodes = [
        helper.make_node("Conv", ["x4", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["c", "shape"], ["y"]),
        helper.make_node("Unsqueeze", ["x", "axes"], ["x4"]),
    ]
    nodes = [nodes[2], nodes[0], nodes[1]]
    weights = {"k": np.ones((2, 1, 3, 3), np.float32), "shape": np.array([0, -1]), "axes": np.array([0, 1])}
    good = tiny(nodes, weights=[numpy_helper.from_array(v, n) for n, v in weights.items()]).SerializeToString()
    x, trials = np.ones((2, 3), np.float32), some(1000)
    assert weft.onnx.loads(good)(x).shape == (1, 12)
    start = time.process_time()
    for _ in range(trials):
        bad = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            bad[rng.integers(len(bad))] = rng.integers(256)
        content = bytes(bad if rng.random() < 0.8 else bad[: rng.integers(len(bad))])
        try:
            net = weft.onnx.loads(content)
            if len(net.inputs) == 1:
                net(x)
        except weft.WeftError:
            pass
    counted(trials)
    assert time.process_time() - start < 60


def test_load_chooses_the_format_by_content(tmp_path: Path) -> None:
    net = weft.nn.Linear(4, 3)
    x = weft.random.normal((2, 4))
    weft.save(tmp_path / "a.bin", net, x)
    weft.onnx.save(tmp_path / "b.bin", net, x)
    assert isinstance(weft.load(tmp_path / "a.bin"), weft.Program)
    assert isinstance(weft.load(tmp_path / "b.bin"), weft.onnx.OnnxModule)
    for name in ("a.bin", "b.bin"):
        assert weft.load(tmp_path / name).eval()(x).numpy() == pytest.approx(net(x).numpy(), abs=1e-6)
    with pytest.raises(weft.RunError, match=r"\[load\] .* cannot be read"):
        weft.load(tmp_path / "missing.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(weft.WeftError):
        weft.load(tmp_path / "text.onnx")
