"""Packed programs compute the same bits and are small on disk; the report adds up to the file; damaged and newer files are rejected."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import compress, nn, zoo
from weft.compress.layer_sizes import LayerSize, against_original
from weft.compress.pack import baked, packed_weights
from weft.packing.packed_tensors import pack_tensors
from weft.saved.packed_text import pack_text, unpack_text

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 60)).astype(np.float32)


def network(density: float = 0.1, bits: int = 4) -> nn.Module:
    weft.random.seed(0)
    model = nn.Sequential(nn.Linear(60, 80), nn.BatchNorm(80), nn.ReLU(), nn.Dropout(0.3), nn.Linear(80, 10)).eval()
    for name in ("layers.0", "layers.1", "layers.4"):
        for tensor in model.named_modules()[name].parameters():
            if tensor.ndim == 1:
                tensor.assign(weft.asarray(np.random.default_rng(1).normal(size=tensor.shape).astype(np.float32)))
    compress.prune(model, density)
    compress.share(model, bits)
    return model


@pytest.mark.parametrize("coder", ["rans", "huffman"])
def test_a_packed_program_computes_the_same_bits(coder, tmp_path: Path) -> None:
    model = network()
    before = {name: tensor.numpy().tobytes() for name, tensor in model.named_tensors().items()}
    size = compress.pack(model, tmp_path / "small.weft", X, coder=coder, labels=list("abcdefghij"), licence="MIT")
    assert size == (tmp_path / "small.weft").stat().st_size < 6000
    plain, small = baked(model), weft.load(tmp_path / "small.weft").eval()
    for name, tensor in plain.named_tensors().items():
        assert small.named_tensors()[name].numpy().tobytes() == tensor.numpy().tobytes(), name
    np.testing.assert_array_equal(weft.jit(small)(X).numpy(), weft.jit(plain.eval())(X).numpy())
    assert (small.labels, small.facts["licence"]) == (list("abcdefghij"), "MIT")
    assert before == {name: tensor.numpy().tobytes() for name, tensor in model.named_tensors().items()}


@pytest.mark.parametrize(("method", "limit"), [
    (lambda model: compress.int8(model, X), 0.3), (lambda model: compress.quantize(model, X, bits=4), 0.25),
    (lambda model: compress.weight_only(model), 0.35), (lambda model: compress.weight_only(model, bits=4, group=20), 0.25),
], ids=["int8", "4 bits", "weights of 8 bits", "weights of 4 bits"])  # fmt: skip
def test_quantized_weights_are_packed_as_integers(
    method: Callable[[nn.Module], Any], limit: float, tmp_path: Path
) -> None:
    weft.random.seed(0)
    model = nn.Sequential(nn.Linear(60, 200, activation="relu"), nn.Linear(200, 60)).eval()
    plain = compress.pack(model, tmp_path / "plain.weft", X)
    method(model)
    size = compress.pack(model, tmp_path / "small.weft", X)
    assert size < limit * plain
    assert compress.report(model).ratio > 0.9 / limit
    small = weft.load(tmp_path / "small.weft").eval()
    np.testing.assert_array_equal(weft.jit(small)(X).numpy(), weft.jit(model)(X).numpy())
    compress.pack(model, tmp_path / "trained.weft", X, train=True)
    trained = {path for path, tensor in weft.load(tmp_path / "trained.weft").named_parameters().items()}
    assert ("layers.0.weight" in trained) == bool(compress.quantization(model)), (
        "rounded weights can be trained further"
    )


@pytest.mark.usefixtures("interpreted")  # what runs repeatedly is compiled, and may differ in its last bits
def test_saved_programs_are_packed_with_training_mode_and_random_streams(tmp_path: Path) -> None:
    model = network()
    weft.save(tmp_path / "net.weft", model, X)
    compress.pack(tmp_path / "net.weft", tmp_path / "small.weft")
    assert (tmp_path / "small.weft").stat().st_size < 0.4 * (tmp_path / "net.weft").stat().st_size
    whole, small = weft.load(tmp_path / "net.weft"), weft.load(tmp_path / "small.weft")
    for training in (False, True):
        results = []
        for program in (whole, small):
            weft.random.seed(3)
            results.append(program.train(training)(X).numpy())
        np.testing.assert_array_equal(*results)
    assert small.named_parameters().keys() == whole.named_parameters().keys()


def test_half_rounds_what_is_stored_and_nothing_of_large_range(tmp_path: Path) -> None:
    model = network()
    layer = model.named_modules()["layers.1"]
    layer.var.assign(weft.asarray(np.linspace(1e5, 2e5, 80, dtype=np.float32)))
    full = compress.pack(model, tmp_path / "full.weft", X)
    half = compress.pack(model, tmp_path / "half.weft", X, half=True)
    assert half < full - 300
    found = weft.load(tmp_path / "half.weft").named_tensors()
    for name, tensor in baked(model).named_tensors().items():
        np.testing.assert_allclose(found[name].numpy(), tensor.numpy(), rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(found["layers.1.var"].numpy(), layer.var.numpy())
    biases = found["layers.0.bias"].numpy()
    np.testing.assert_array_equal(biases, biases.astype(np.float16))


@pytest.mark.usefixtures("interpreted")  # what runs repeatedly is compiled, and may differ in its last bits
def test_half_keeps_tensors_of_tiny_values(tmp_path: Path) -> None:
    """float16 has no numbers below 6e-8, and few digits below 6e-5."""
    weft.random.seed(0)
    model = nn.Sequential(nn.Linear(60, 8)).eval()
    for size in (1e-9, 1e-7, 1e-6):
        for tensor in model.parameters():
            tensor.assign(np.random.default_rng(0).normal(size=tensor.shape).astype(np.float32) * np.float32(size))
        compress.pack(model, tmp_path / "small.weft", X, half=True)
        small = weft.load(tmp_path / "small.weft").named_tensors()
        for name, tensor in model.named_tensors().items():
            largest = np.abs(tensor.numpy()).max()
            np.testing.assert_allclose(small[name].numpy(), tensor.numpy(), rtol=1e-3, atol=1e-3 * largest)


def test_files_of_a_newer_version_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.weft"
    compress.pack(network(), path, X)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["manifest.json", "program.packed", "weights.packed"]
        head = json.loads(archive.read("manifest.json"))
        assert (head["format"], head["version"]) == ("weft-program", 3), "an older weft says that it is too old"
        assert archive.getinfo("manifest.json").compress_type == zipfile.ZIP_STORED
        assert archive.testzip() is None
    path.write_bytes(whole.replace(b'"version":3', b'"version":4'))
    with pytest.raises(weft.RunError, match="checksum of manifest.json is wrong"):
        weft.load(path)
    with weft.knobs.set(compile_after=1):  # the interpreter rounds in another order
        path.write_bytes(whole)
        expected = weft.load(path).eval()(X).numpy()
        errors = []
        for place in RNG.integers(0, len(whole), 60):
            damaged = bytearray(whole)
            damaged[int(place)] ^= 0xFF
            path.write_bytes(bytes(damaged))
            try:
                found = weft.load(path).eval()(X).numpy()
            except (weft.RunError, weft.UserError) as error:
                errors.append(error.message)
            else:  # a date, say
                np.testing.assert_array_equal(found, expected)
    assert len(errors) > 30
    assert all("small.weft" in message for message in errors)


def test_a_file_has_few_bytes_beside_its_weights(tmp_path: Path) -> None:
    model = zoo.lenet5().eval()
    model(weft.zeros((1, 1, 28, 28)))
    size = compress.pack(model, tmp_path / "small.weft", weft.zeros((1, 1, 28, 28)))
    assert size - len(pack_tensors(packed_weights(model)).content) < 700
    text = weft.load(tmp_path / "small.weft").graph_text("eval")
    assert "# @ layers.5 Linear" in text, "profiles name layers"
    assert "# float32" not in text, "types follow from the graph"


def test_texts_of_packed_programs() -> None:
    graph = "def graph(x0):\n    v0 = exp(x0)  # float32[3] @ layers.0 Exp\n    v1 = neg(v0)  # float32[3]\n    return (v1,)\n"
    content = pack_text('{"a": 1}\n', [graph, "é"])
    found = graph.replace("# float32[3] @", "# @").replace("  # float32[3]", "")
    assert unpack_text(content, 1000) == ['{"a": 1}\n', found, "é"]
    for damaged in (content[:-3], content + b"x", b"", content[::-1]):
        with pytest.raises(ValueError, match="cut off|cannot be inflated"):
            unpack_text(damaged, 1000)
    with pytest.raises(ValueError, match="longer than 20 bytes"):
        unpack_text(content, 20)


def test_a_packed_program_must_have_the_graphs_that_it_names(tmp_path: Path) -> None:
    path = tmp_path / "small.weft"
    compress.pack(network(), path, X)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    manifest, graph = unpack_text(entries["program.packed"], 1 << 20)
    for texts, why in (([], "0 graphs, the manifest names 1"), ([graph, graph], "2 graphs"), (["x"], "eval.py")):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (entries | {"program.packed": pack_text(manifest, texts)}).items():
                archive.writestr(name, content)
        with pytest.raises(weft.RunError, match=why):
            weft.load(path).eval()(X)


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(weft.UserError, match="inputs are required"):
        compress.pack(network(), tmp_path / "x.weft")
    compress.pack(network(), tmp_path / "x.weft", X)
    with pytest.raises(weft.UserError, match="has its inputs and facts already"):
        compress.pack(tmp_path / "x.weft", tmp_path / "y.weft", X)
    with pytest.raises(weft.UserError, match="got a loaded program"):
        compress.pack(weft.load(tmp_path / "x.weft"), tmp_path / "y.weft", X)


# --- the report -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coder", ["rans", "huffman"])
def test_the_report_adds_up_to_the_file(coder, tmp_path: Path) -> None:
    model = network()
    found = compress.report(model, coder=coder)
    tensors = {name: tensor.numpy() for name, tensor in baked(model).named_tensors().items()}
    assert found.after == compress.save_packed(tmp_path / "w.packed", tensors, coder)
    assert found.before == sum(value.nbytes for value in tensors.values())
    assert sum(layer.after for layer in found.layers) == pytest.approx(found.after)
    assert sum(layer.share for layer in found.layers) == pytest.approx(1.0)
    first, second, others = found.layers
    assert (first.name, first.weights, first.density, first.before) == ("layers.0", 4800, 0.1, 19200)
    assert 3.5 < first.coded_weight_bits <= first.weight_bits + 0.1 < 4.4
    assert 4.0 < first.coded_index_bits < first.index_bits
    assert second.weights == 800
    assert others.before == 4 * (80 + 10 + 4 * 80)
    text = str(found)
    assert text.splitlines()[0].startswith("layer")
    assert f"{found.ratio:.1f}x" in text.splitlines()[-1]
    assert json.loads(json.dumps(found.as_json()))["layers"][0]["density"] == 0.1


def test_a_report_against_the_original_keeps_at_most_all_of_it() -> None:
    rows = [LayerSize("others", 12, 1.0, 32.0, 0.0, 32.0, 0.0, 48, 40.0, 1.0)]  # two scales more than the original has
    (found,) = against_original(rows, [LayerSize("others", 10, 1.0, 32.0, 0.0, 32.0, 0.0, 40, 40.0, 1.0)])
    assert (found.density, found.weights, found.after) == (1.0, 10, 40.0)


def test_the_report_follows_the_steps() -> None:
    weft.random.seed(0)
    model = nn.Sequential(nn.Linear(60, 80), nn.ReLU(), nn.Linear(80, 10))
    ratios = [compress.report(model).ratio]
    compress.prune(model, 0.1)
    assert compress.report(model).layers[0].coded_weight_bits == 32.0
    ratios.append(compress.report(model).ratio)
    compress.share(model, 4)
    assert compress.report(model).layers[0].coded_weight_bits < 4.1
    ratios.append(compress.report(model).ratio)
    assert ratios[0] < 1.1 < 7 < ratios[1] < 15 < ratios[2]
